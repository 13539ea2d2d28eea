package stack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// readyTimeout bounds the wait for the roles after they were started.
const readyTimeout = 30 * time.Second

// waitReady returns when the gateway's health is SERVING, which means that every
// role had a ready instance.
func (s *Stack) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errors.New("the gateway did not become ready in time"))
	defer cancel()
	waiting, end := context.WithCancelCause(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer end(nil)
	watcher.Go(func() {
		if err := s.Failed(waiting); err != nil {
			end(err)
		}
	})
	return AwaitServing(waiting, s.Endpoints.Gateway, s.credentials())
}

// AwaitServing returns when the health of the server at a host:port is SERVING, or
// with the cause of the end of ctx.
func AwaitServing(ctx context.Context, address string, credentials credentials.TransportCredentials) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials))
	if err != nil {
		return fmt.Errorf("reach %s: %w", address, err)
	}
	defer func() { _ = connection.Close() }()
	client := healthv1.NewHealthClient(connection)
	for {
		answer, err := client.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// credentials are those of a client of the gateway. A certificate is for the name
// that the public knows, and who answers is a part of this very process.
func (s *Stack) credentials() credentials.TransportCredentials {
	if s.environment["XMTP_TLS_CERT_FILE"] == "" {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) //nolint:gosec // see above
}
