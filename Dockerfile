# syntax=docker/dockerfile:1
# One image for each program: docker build --build-arg ROLE=publisher -t xmtp-selfhosted/backend-publisher .
# ROLE is publisher, reader, streamer, gateway or xmtpctl. The result is one static binary that runs as nobody, and no shell.
FROM golang:1.26-bookworm AS build
ARG ROLE=gateway
ARG VERSION=dev
ENV CGO_ENABLED=0
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod \
    case "$ROLE" in xmtpctl) package=./cmd/xmtpctl ;; *) package=./services/$ROLE/cmd/$ROLE ;; esac && \
    mkdir -p /out && \
    go build -ldflags "-s -w -X main.version=$VERSION" -o /out/program "$package"

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/program /program
USER 65532:65532
EXPOSE 5050 5051 5052 5053
ENTRYPOINT ["/program"]
