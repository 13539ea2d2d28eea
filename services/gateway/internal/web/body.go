package web

import (
	"encoding/binary"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// prefixBytes is the length of the frame header that gRPC, gRPC-Web and Connect
// streams share: a flag byte and the length of the message.
const prefixBytes = 5

// framedBody refuses a message by the length in its frame header, before the
// message is read.
type framedBody struct {
	io.ReadCloser
	limit   int
	prefix  [prefixBytes]byte
	have    int // bytes of the prefix seen
	message int // bytes of the message still to come
}

func (b *framedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for seen := p[:n]; len(seen) > 0; {
		if b.message > 0 {
			skip := min(b.message, len(seen))
			b.message -= skip
			seen = seen[skip:]
			continue
		}
		took := copy(b.prefix[b.have:], seen)
		b.have += took
		seen = seen[took:]
		if b.have == prefixBytes {
			b.have = 0
			b.message = int(binary.BigEndian.Uint32(b.prefix[1:]))
			if b.message > b.limit {
				return 0, connectError(rpc.TooLong(b.message, b.limit))
			}
		}
	}
	return n, err
}

// wholeBody refuses a body that is one message (Connect unary) by its length.
type wholeBody struct {
	io.ReadCloser
	limit, seen int
}

func (b *wholeBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.seen += n; b.seen > b.limit {
		return 0, connectError(rpc.TooLong(b.seen, b.limit))
	}
	return n, err
}

// connectError is err in the terms of connect: the same code, text and details.
func connectError(err error) *connect.Error {
	status := rpc.Status(err).Proto()
	converted := connect.NewError(connect.Code(status.GetCode()), errors.New(status.GetMessage()))
	for _, detail := range status.GetDetails() {
		// It fails only for a message that cannot be encoded, and this one is.
		if kept, err := connect.NewErrorDetail(detail); err == nil {
			converted.AddDetail(kept)
		}
	}
	return converted
}
