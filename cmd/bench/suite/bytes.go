package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// The bare stream server: grpc-go and nothing else. It sends the same bytes on
// every stream as fast as they are taken.
const (
	bytesService = "bench.Bytes"
	bytesMethod  = "/bench.Bytes/Follow"
)

func serveBytes(ctx context.Context, size int) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	content := make([]byte, size)
	server := grpc.NewServer(grpc.ForceServerCodecV2(rpc.Codec{}))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: bytesService, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Follow", ServerStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			for {
				if err := stream.SendMsg(rpc.FrameOf(content)); err != nil {
					return err
				}
			}
		},
	}}}, struct{}{})
	fmt.Println(listener.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
		server.Stop()
	}()
	return server.Serve(listener)
}

// bareStreams returns how many frames of a size a second arrive on streams of the
// bare server.
func bareStreams(ctx context.Context, streams, connections, size int, length time.Duration) (_ float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	command := exec.CommandContext(ctx, self, "-serve-bytes", fmt.Sprintf("-serve-size=%d", size))
	command.Stderr = os.Stderr
	pipe, err := command.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := command.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pipe.Close(), command.Wait()) }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the bare stream server did not start: %w", err)
	}
	return follow(ctx, strings.TrimSpace(address), streams, connections, length)
}

func follow(ctx context.Context, address string, streams, connections int, length time.Duration) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rpc.Codec{})))
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		conns[i] = conn
	}
	var got atomic.Int64
	for i := range streams {
		stream, err := conns[i%connections].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, bytesMethod)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(stream.SendMsg(rpc.FrameOf(nil)), stream.CloseSend()); err != nil {
			return 0, err
		}
		wait.Go(func() {
			for {
				var frame rpc.Frame
				if stream.RecvMsg(&frame) != nil {
					return
				}
				frame.Free()
				got.Add(1)
			}
		})
	}
	time.Sleep(warmup)
	before, begun := got.Load(), time.Now()
	time.Sleep(length)
	return float64(got.Load()-before) / time.Since(begun).Seconds(), nil
}
