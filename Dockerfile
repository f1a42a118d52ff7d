# One build, two images, each a static binary on nothing:
#
#   docker build --target broker -t understudy/broker:dev .
#   docker build --target operator -t understudy/operator:dev .
#
# e2e/images makes the same two where neither Docker nor buildah is.

FROM rust:1.95-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Linked statically against glibc, so that the final images need no libc. The target is named, so that build scripts and
# macros, which run here, are not linked that way too.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    triple="$(rustc -vV | sed -n 's/^host: //p')" && \
    RUSTFLAGS='-C target-feature=+crt-static' cargo build --release --locked --target "$triple" \
      -p understudy-broker --bin understudy-broker -p understudy-operator --bin understudy-operator \
      -p understudy-bench --bin understudy-bench && \
    mkdir -p /out/tmp && chmod 1777 /out/tmp && \
    for part in broker operator bench; do \
      objcopy --strip-debug "target/$triple/release/understudy-$part" "/out/understudy-$part"; \
    done && \
    printf 'root:x:0:0::/:/bin/false\nnonroot:x:65532:65532::/tmp:/bin/false\n' > /out/passwd

FROM scratch AS base
COPY --from=build /out/tmp /tmp
COPY --from=build /out/passwd /etc/passwd
USER 65532:65532

FROM base AS operator
COPY --from=build /out/understudy-operator /usr/local/bin/understudy-operator
ENTRYPOINT ["/usr/local/bin/understudy-operator"]

FROM base AS broker
COPY --from=build /out/understudy-broker /usr/local/bin/understudy-broker
# The load generator, for `kubectl understudy perf`.
COPY --from=build /out/understudy-bench /usr/local/bin/understudy-bench
ENTRYPOINT ["/usr/local/bin/understudy-broker"]
