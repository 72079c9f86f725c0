"""The custom calls of which JAX promises that later releases still have them."""

GUARANTEED_STABLE = frozenset(
    {
        # LAPACK, on CPUs.
        *(
            f"lapack_{element}{routine}_ffi"
            for element in "sdcz"
            for routine in (
                *("gees", "geev", "gehrd", "geqrf", "gesdd", "getrf", "gtsv", "potrf", "trsm"),
                *(("orgqr", "syevd", "sytrd") if element in "sd" else ("ungqr", "heevd", "hetrd")),
            )
        ),
        # cuSOLVER, cuSPARSE and hipSOLVER, on GPUs.
        *(
            f"{library}_{routine}_ffi"
            for library in ("cusolver", "hipsolver")
            for routine in ("geqrf", "gesvd", "gesvdj", "getrf", "orgqr", "potrf", "syevd", "sytrd")
        ),
        "cu_lu_pivots_to_permutation",
        "cusparse_gtsv2_ffi",
        "hip_lu_pivots_to_permutation",
        "hipsolver_gesdd_ffi",
        # Random numbers, on GPUs.
        "cu_threefry2x32_ffi",
        "hip_threefry2x32_ffi",
        # Decompositions and the approximate top k, on TPUs.
        "ApproxTopK",
        "Eigh",
        "LuDecomposition",
        "ProductOfElementaryHouseholderReflectors",
        "Qr",
        # Pallas kernels, and functions of TensorFlow.
        "mosaic_gpu_v2",
        "tf.call_tf_function",
        "tpu_custom_call",
        # Shardings, memory spaces and memory that is not initialized.
        "AllocateBuffer",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "annotate_device_placement",
        # Operations on dynamic shapes, which are resolved before anything is compiled.
        "shape_assertion",
        "stablehlo.dynamic_approx_top_k",
        "stablehlo.dynamic_reduce_window",
        "stablehlo.dynamic_rng_bit_generator",
        "stablehlo.dynamic_top_k",
    }
)
"""`_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE` of `jax/_src/export/_export.py`, JAX 0.10 to 0.12."""
