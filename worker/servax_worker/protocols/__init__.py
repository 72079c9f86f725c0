"""Other protocols than the native API: each a package that only translates to the predictor's."""
