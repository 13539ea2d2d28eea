package rpc

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	_ "google.golang.org/grpc/health" // client-side health checking, which the service config asks for
	"google.golang.org/grpc/keepalive"
)

// DialDeps is what a connection to a role needs beside its endpoints.
type DialDeps struct {
	// MaxResponseBytes is the longest message accepted from the role.
	MaxResponseBytes int
}

// dialServiceConfig spreads calls over all instances that say they serve.
const dialServiceConfig = `{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":""}}`

// Dial prepares a connection to all instances of a role. endpoints is a gRPC
// target with a scheme (dns:///reader:5052), or a comma-separated list of
// host:port whose host names are looked up again every few seconds, so that
// instances that come and go are noticed. Messages are Frames, or protobuf.
// Nothing is sent before the first call or Connect.
func Dial(endpoints string, deps DialDeps) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(dialServiceConfig),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // whoever calls knows better when to repeat
		grpc.WithAuthority("backend"),
		grpc.WithChainUnaryInterceptor(propagateUnary),
		grpc.WithChainStreamInterceptor(propagateStream),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		experimental.WithBufferPool(&used),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connectionWindow),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec{}),
			grpc.MaxCallRecvMsgSize(deps.MaxResponseBytes), grpc.MaxCallSendMsgSize(1<<30)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTime / 2, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0), // an idle gateway must notice at once when an instance is ready
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
	target := endpoints
	if !strings.Contains(endpoints, "://") {
		hosts, err := parseHosts(endpoints)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithResolvers(hosts))
		target = hostsScheme + ":///role"
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection to %q: %w", endpoints, err)
	}
	return conn, nil
}
