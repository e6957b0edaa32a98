# The image of all roles of a job on Kubernetes (docs/guide/kubernetes.md), with torch for CPUs:
#   docker build -t registry.example.com/persia:0.1.0 .
# With torch for GPUs: docker build --build-arg TORCH_INDEX=https://pypi.org/simple -t …
# Kernels are compiled where they run, in seconds: their code is for the processor of the node, not of who builds this.
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY persia_cli persia_cli
COPY conf conf
COPY recipes recipes
RUN python -m venv /opt/persia \
    && /opt/persia/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" .

FROM python:3.12-slim
RUN useradd --uid 1000 --no-create-home --home-dir /tmp persia
COPY --from=build /opt/persia /opt/persia
ENV PATH=/opt/persia/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000
WORKDIR /tmp
ENTRYPOINT ["persia"]
