package gateway_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Proves API-132.
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
//
// Proves API-132, API-133.
func TestMoreCallsThanStreamsAllSucceed(t *testing.T) {
	role := slowRole(0)
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_GATEWAY_MAX_CALLS": "8192"}) // there is room for a thousand at a time
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

// A message that is refused ends its stream with the reason, whatever the protocol.
func TestARefusedMessageEndsItsStreamWithTheReason(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_MAX_REQUEST_BYTES": "1500000"})
	callers := ways(t, f)
	callers["gRPC-Web over h2c, gzip requests"] = connectCaller("http://"+f.address, transport(t, true), true, connect.WithGRPCWeb(), connect.WithSendGzip())
	long := &backendv1.SubscribeRequest{Request: &backendv1.SubscribeRequest_Update_{Update: &backendv1.SubscribeRequest_Update{
		Removes: []*backendv1.Topic{{Topic: make([]byte, 1_500_000)}},
	}}}
	for name, c := range callers {
		if c.subscribe == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			stream := c.subscribe(ctx)
			// The first message lets the headers go, and Started comes before it is read.
			require.NoError(t, stream.Send(&backendv1.SubscribeRequest{}))
			_, err := stream.Receive()
			require.NoError(t, err)
			if err := stream.Send(long); err != nil {
				require.ErrorIs(t, err, io.EOF) // refused by its first bytes
			}
			for err == nil { // the answer to the first message
				_, err = stream.Receive()
			}
			if strings.Contains(name, "gzip") {
				requireStatus(t, codes.ResourceExhausted, "1500000", err)
				return
			}
			requireStatus(t, codes.OutOfRange, "expected at most 1500000", err)
		})
	}
}
