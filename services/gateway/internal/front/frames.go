package front

import (
	"bytes"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// The frames of our own. A buffer takes every write, so none of them fails.

func resetFrame(id uint32, code http2.ErrCode) []byte {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteRSTStream(id, code)
	return frame.Bytes()
}

func goAwayFrame(lastStream uint32) []byte {
	var frame bytes.Buffer
	_ = http2.NewFramer(&frame, nil).WriteGoAway(lastStream, http2.ErrCodeNo, nil)
	return frame.Bytes()
}

// statusFrames end a call with the status of err: trailers, behind headers when
// the server sent none yet; and the request is to be stopped. The fields leave
// the state of the header compression alone, which is grpc-go's.
func statusFrames(id uint32, answered bool, err error) []byte {
	status := rpc.Status(err)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	write := func(name, value string) {
		_ = encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: true})
	}
	if !answered {
		write(":status", "200")
		write("content-type", "application/grpc")
	}
	write("grpc-status", strconv.Itoa(int(status.Code())))
	write("grpc-message", percentEncoded(status.Message()))
	var frames bytes.Buffer
	framer := http2.NewFramer(&frames, nil)
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	_ = framer.WriteRSTStream(id, http2.ErrCodeNo)
	return frames.Bytes()
}

// percentEncoded is the form of grpc-message.
func percentEncoded(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}
