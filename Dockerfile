# One image, three roles: `mainstay serve`, `mainstay worker`, `mainstay node` (see docker-compose.yml).
# Base images are pinned by the digest of their index for all platforms; the tag only names the version.
FROM node:22.23.3-bookworm-slim@sha256:43ac6c60b8f89723f746e8a92ce91abd5017e627ce1ddfe4238355d3a30b772c AS web
WORKDIR /build/web
COPY web/package.json web/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY web/ ./
RUN npm run build

FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS wheel
WORKDIR /build
COPY . ./
COPY --from=web /build/web/dist web/dist
RUN pip wheel --no-deps --wheel-dir dist .

FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1
# The control plane and the node daemon need no torch. Benchmarks do, and run on nodes that bring their own build.
# Every package is installed from the bytes that requirements.lock names, and nothing else is.
RUN --mount=type=bind,from=wheel,source=/build,target=/build \
    pip install --require-hashes -r /build/requirements.lock && \
    pip install --no-deps --no-index /build/dist/mainstay-*.whl
# The service refuses a data directory that other users may read.
RUN useradd --system --create-home --home-dir /var/lib/mainstay mainstay \
    && install -d -o mainstay -m 700 /var/lib/mainstay /var/lib/mainstay-history
USER mainstay
ENV MAINSTAY_DATA_DIR=/var/lib/mainstay
EXPOSE 8080
ENTRYPOINT ["mainstay"]
CMD ["serve", "--host", "0.0.0.0"]
