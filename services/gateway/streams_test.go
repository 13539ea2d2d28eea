package gateway_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func TestEveryConnectionIsToldOfAHundredStreams(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	for _, contentType := range []string{"", "application/grpc", "application/grpc-web"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.address)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(soon)))
		_, block := speaks(conn)
		framer := http2.NewFramer(conn, conn)
		if contentType != "" {
			require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(contentType), EndHeaders: true}))
		}
		for {
			frame, err := framer.ReadFrame()
			require.NoError(t, err)
			settings, ok := frame.(*http2.SettingsFrame)
			if !ok || settings.IsAck() {
				continue
			}
			limit, ok := settings.Value(http2.SettingMaxConcurrentStreams)
			require.True(t, ok, contentType)
			require.EqualValues(t, 100, limit)
			break
		}
	}
}

// The limit is for clients only: a role has one connection from each gateway.
func TestMoreCallsThanOneConnectionHoldsReachTheRoleTogether(t *testing.T) {
	const calls = 250
	role := behavingRole()
	var together sync.WaitGroup
	together.Add(calls)
	role.query = func(context.Context, *backendv1.QueryRequest) (*backendv1.QueryResponse, error) {
		together.Done()
		together.Wait()
		return &backendv1.QueryResponse{}, nil
	}
	role.start(t, "")
	f := startGateway(t, role, nil)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var running sync.WaitGroup
	for range 5 {
		conn := dial(t, f.address)
		for range calls / 5 {
			running.Go(func() {
				_, err := nativeCaller(conn).query(ctx, &backendv1.QueryRequest{})
				assert.NoError(t, err)
			})
		}
	}
	running.Wait()
}

// A client that has more calls than streams queues them itself.
func TestMoreCallsThanStreamsAllSucceed(t *testing.T) {
	role := slowRole(0)
	role.start(t, "")
	f := startGateway(t, role, nil)
	var running sync.WaitGroup
	for name, c := range ways(t, f) {
		for range 150 {
			running.Go(func() {
				_, err := c.query(t.Context(), &backendv1.QueryRequest{})
				assert.NoError(t, err, name)
			})
		}
	}
	running.Wait()
}
