# One file, three images:
#
#   docker build --target registry    -t servax-registry .
#   docker build --target worker      -t servax-worker .
#   docker build --target worker-cuda -t servax-worker:cuda .
#
# Every step that installs is a make target, so that it also runs, and is tested, without Docker.

ARG PYTHON_VERSION=3.13

FROM python:${PYTHON_VERSION}-slim AS source
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile pyproject.toml constraints.txt README.md LICENSE ./
COPY protos protos
COPY client client
COPY registry registry
COPY worker worker

FROM source AS build-registry
RUN make install EXTRAS=registry,postgres,objects PREFIX=/opt/servax

FROM source AS build-worker
RUN make install EXTRAS=worker PREFIX=/opt/servax

FROM source AS build-worker-cuda
RUN make install EXTRAS=worker-cuda PREFIX=/opt/servax

# What all images share: an unprivileged user that owns nothing but its state.
FROM python:${PYTHON_VERSION}-slim AS runtime
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/servax servax
ENV PATH=/opt/servax/bin:$PATH PYTHONUNBUFFERED=1
USER servax
WORKDIR /var/lib/servax
VOLUME /var/lib/servax
STOPSIGNAL SIGTERM

FROM runtime AS registry
COPY --from=build-registry /opt/servax /opt/servax
ENV SERVAX_REGISTRY_DB=sqlite:////var/lib/servax/registry.db SERVAX_REGISTRY_LISTEN=0.0.0.0:8400
EXPOSE 8400
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["servax-registry", "health"]
ENTRYPOINT ["servax-registry"]
CMD ["serve"]

FROM runtime AS worker-runtime
ENV SERVAX_WORKER_LISTEN=0.0.0.0:8500 SERVAX_WORKER_HTTP=0.0.0.0:8501 \
    SERVAX_WORKER_CACHE_DIR=/var/lib/servax/cache
EXPOSE 8500 8501
# Unhealthy until every model is READY; a cold start may compile for minutes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["servax-worker", "health"]
ENTRYPOINT ["servax-worker"]
CMD ["serve"]

FROM worker-runtime AS worker
COPY --from=build-worker /opt/servax /opt/servax

# The wheels of jax[cuda12] bring CUDA; the host needs only the NVIDIA driver and container toolkit.
FROM worker-runtime AS worker-cuda
COPY --from=build-worker-cuda /opt/servax /opt/servax
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
