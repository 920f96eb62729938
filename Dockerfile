# umavez in a container: the Debian package (contrib/debian), built in one stage and installed in the next.
#
#   docker build -t umavez .
#   docker run --rm -e DATABASE_URL=… -v ./tasks:/srv/umavez/tasks:ro umavez worker
#
# compose.yaml has PostgreSQL and Valkey beside it.
ARG DEBIAN=bookworm

FROM debian:${DEBIAN}-slim AS build
ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends \
    gcc libc6-dev make pkgconf libluajit-5.1-dev libpq-dev libhiredis-dev libev-dev libmicrohttpd-dev libssl-dev lua-argparse \
    build-essential debhelper
WORKDIR /umavez
COPY Makefile LICENSE README.md README.pt-BR.md CHANGELOG.md ./
COPY contrib contrib
COPY docs docs
COPY examples examples
COPY lua lua
COPY runtime runtime
COPY sql sql
COPY tasks tasks
RUN make deb PACKAGES=/out && mv /out/umavez_*.deb /umavez.deb

FROM debian:${DEBIAN}-slim
COPY --from=build /umavez.deb /tmp/umavez.deb
# systemd-standalone-sysusers makes the package's user without systemd.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends systemd-standalone-sysusers tzdata /tmp/umavez.deb \
    && rm -rf /tmp/umavez.deb /var/lib/apt/lists/* \
    && mkdir -p /srv/umavez/tasks
# Tasks and, if you like, an umavez.lua of yours; the environment overrides it (docs/configuration.md).
WORKDIR /srv/umavez
USER umavez
ENTRYPOINT ["umavez"]
CMD ["worker"]
