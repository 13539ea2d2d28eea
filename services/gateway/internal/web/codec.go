package web

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// standInCodec is for the stand-ins of messages, whatever the messages are in. It
// also encodes the status of an error.
type standInCodec struct{ name string }

func (c standInCodec) Name() string { return c.name }

func (standInCodec) Marshal(v any) ([]byte, error) {
	switch message := v.(type) {
	case *rpc.Frame:
		return message.Take(), nil
	case proto.Message:
		return proto.Marshal(message)
	default:
		return nil, fmt.Errorf("cannot send a %T", v)
	}
}

func (standInCodec) Unmarshal([]byte, any) error { return nil }

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
