package gateway

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// nativeOptions are the limits of the public port on grpc-go's transport.
func nativeOptions(c Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(int(c.Limits.MaxRequestBytes)),
		grpc.MaxConcurrentStreams(c.Limits.MaxConcurrentStreams),
		grpc.MaxHeaderListSize(uint32(c.Front.MaxHeaderBytes)),
		grpc.ConnectionTimeout(c.Front.HeaderTimeout),
		grpc.ReadBufferSize(0), // the connection has a buffer of its own (package front)
		rpc.KeptHandlers(),
		// Phones ask every few seconds whether the path still works, also between
		// calls; that is no reason to cut them off.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: c.Front.IdleTimeout,
			Time:              30 * time.Second,
			Timeout:           20 * time.Second,
		}),
	}
}
