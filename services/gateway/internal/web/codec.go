package web

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
)

// rawCodec leaves messages as they are: the role decodes them.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (c rawCodec) Marshal(v any) ([]byte, error) { return c.MarshalAppend(nil, v) }

// MarshalAppend copies the frame, since connect keeps what it is given for later
// calls. It also encodes the status of an error.
func (rawCodec) MarshalAppend(to []byte, v any) ([]byte, error) {
	switch message := v.(type) {
	case *rpc.Frame:
		for _, part := range message.Data {
			to = append(to, part.ReadOnlyData()...)
		}
		message.Free()
		return to, nil
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(to, message)
	default:
		return nil, fmt.Errorf("cannot send a %T", v)
	}
}

// Unmarshal copies the bytes, which connect uses again.
func (rawCodec) Unmarshal(encoded []byte, v any) error {
	frame, ok := v.(*rpc.Frame)
	if !ok {
		return fmt.Errorf("cannot receive into a %T", v)
	}
	*frame = *rpc.FrameOf(append([]byte(nil), encoded...))
	return nil
}

// jsonCodec is protobuf's JSON in front of one method: people with curl see
// names instead of field numbers.
type jsonCodec struct {
	name            string
	request, answer protoreflect.MessageType
}

func (c jsonCodec) Name() string { return c.name }

func (c jsonCodec) Marshal(v any) ([]byte, error) {
	frame, ok := v.(*rpc.Frame)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T as JSON", v)
	}
	message := c.answer.New().Interface()
	if err := proto.Unmarshal(frame.Take(), message); err != nil {
		return nil, fmt.Errorf("decode an answer of the role: %w", err)
	}
	return protojson.Marshal(message)
}

// maxJSONValues bounds the objects, list elements and fields of one JSON message.
// Decoded, "{}," is thirty times as long as in JSON, so the bound in bytes is not
// enough. The largest update of a stream has 700,000 of them.
const maxJSONValues = 1 << 20

// checkJSON counts what begins or follows a value, also inside of strings: those
// of the API are base64 and hexadecimal.
func checkJSON(text []byte) error {
	if values := bytes.Count(text, []byte("{")) + bytes.Count(text, []byte(",")); values > maxJSONValues {
		return fmt.Errorf("the JSON has %d braces and commas, expected at most %d; send less at a time, or protobuf", values, maxJSONValues)
	}
	return nil
}

// Unmarshal takes fields it does not know for those of a later version. connect
// makes its errors INVALID_ARGUMENT.
func (c jsonCodec) Unmarshal(text []byte, v any) error {
	frame, ok := v.(*rpc.Frame)
	if !ok {
		return fmt.Errorf("cannot receive JSON into a %T", v)
	}
	if err := checkJSON(text); err != nil {
		return err
	}
	message := c.request.New().Interface()
	if len(text) > 0 {
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, message); err != nil {
			return err
		}
	}
	encoded, err := proto.Marshal(message)
	if err != nil {
		return err
	}
	*frame = *rpc.FrameOf(encoded)
	return nil
}
