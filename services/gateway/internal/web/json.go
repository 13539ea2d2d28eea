package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xmtp-selfhosted/backend/pkg/budget"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/services/gateway/internal/caller"
)

// jsonForm is protobuf's JSON in front of one method: people with curl see names
// instead of field numbers.
type jsonForm struct{ request, answer protoreflect.MessageType }

// maxJSONValues bounds the objects, list elements and fields of one JSON message.
// The largest update of a stream has 700,000 of them.
const maxJSONValues = 1 << 20

// What a message costs beside its JSON text while it is decoded, in bytes: as much as
// the text for the message, and for its encoding, and for each value valueBytes.
// Decoded, "{}," is thirty times as long as in JSON, and counted as two values.
const valueBytes = 64

// valuesOf counts what begins or follows a value, also inside of strings: those of
// the API are base64 and hexadecimal.
func valuesOf(text []byte) int {
	return bytes.Count(text, []byte("{")) + bytes.Count(text, []byte(","))
}

// fromJSON replaces a text by the message that it stands for, for the time of which
// there must be room. It takes fields it does not know for those of a later version.
func (f jsonForm) fromJSON(ctx context.Context, arrival *rpc.Arrival, frame *rpc.Frame) (*rpc.Frame, error) {
	text := frame.Data.Materialize()
	frame.Data.Free()
	frame.Data = nil
	encoded, err := f.decode(ctx, arrival, text)
	if err != nil {
		frame.Free()
		return nil, err
	}
	frame.Data = rpc.FrameOf(encoded).Data // with the room that the text has
	return frame, nil
}

func (f jsonForm) decode(ctx context.Context, arrival *rpc.Arrival, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, nil
	}
	values := valuesOf(text)
	if values > maxJSONValues {
		return nil, fault.Invalidf(fault.NoReason,
			"the JSON has %d braces and commas, expected at most %d; send less at a time, or protobuf", values, maxJSONValues)
	}
	release, err := arrival.Room(ctx, int64(2*len(text)+values*valueBytes))
	if errors.Is(err, budget.ErrTooLarge) {
		return nil, fault.Wrap(fault.Exhausted, err, "the JSON is larger, once decoded, than one client may have; send less at a time, or protobuf")
	}
	if err != nil {
		return nil, err
	}
	defer release()
	message := f.request.New().Interface()
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, message); err != nil {
		return nil, refusedJSON(f.request.Descriptor().Name(), err)
	}
	return proto.Marshal(message)
}

// jsonError is the beginning of protojson's errors. Behind it they quote the input.
var jsonError = regexp.MustCompile(`^proto:[\s\x{a0}]+(?:syntax error )?\(line (\d+):(\d+)\): (?:invalid value for (\w+) field (\w+): )?`)

// refusedJSON says where the text is wrong, and nothing of what is in it: protojson's
// own errors hold all of a value, and differ from one build to the next.
func refusedJSON(name protoreflect.Name, err error) error {
	where := jsonError.FindStringSubmatch(err.Error())
	switch {
	case where == nil:
		return fault.Wrap(fault.Invalid, err, "the request is not the JSON of a %s", name)
	case where[4] != "":
		return fault.Wrap(fault.Invalid, err, "the request is not the JSON of a %s: at line %s, column %s the field %s is no %s",
			name, where[1], where[2], where[4], where[3])
	default:
		return fault.Wrap(fault.Invalid, err, "the request is not the JSON of a %s: wrong at line %s, column %s", name, where[1], where[2])
	}
}

// toJSON replaces an answer by its text, for which there must be room until the
// client has taken it.
func (f jsonForm) toJSON(patience context.Context, client *caller.Caller, frame *rpc.Frame) (*rpc.Frame, error) {
	owe := func(bytes int) (*caller.Answer, error) {
		return client.Owe(patience, func(ctx context.Context) context.Context { return ctx }, bytes)
	}
	content, err := owe(contentCost(frame.Data.Len()))
	if err != nil {
		frame.Free()
		return nil, err
	}
	encoded := frame.Take()
	values, err := owe(valueCost(f.answer.Descriptor(), encoded))
	if err != nil {
		content.Drop()
		return nil, err
	}
	text, err := f.encode(encoded)
	if err != nil {
		content.Drop()
		values.Drop()
		return nil, err
	}
	answer := rpc.FrameOf(text)
	content.Attach(answer)
	answer.Hold(values.Drop)
	return answer, nil
}

func (f jsonForm) encode(encoded []byte) ([]byte, error) {
	message := f.answer.New().Interface()
	if err := proto.Unmarshal(encoded, message); err != nil {
		return nil, fmt.Errorf("decode an answer of the role: %w", err)
	}
	return protojson.Marshal(message)
}

// What an answer costs as a message and as a text, in bytes: each message and each
// field with its name, a number of a packed list, and of all content a copy and the
// base64.
const (
	messageCost = 128
	fieldCost   = 96
	packedCost  = 32
)

func contentCost(bytes int) int { return bytes * 7 / 3 }

// valueCost is what the messages and fields of an encoded message cost.
func valueCost(of protoreflect.MessageDescriptor, encoded []byte) int {
	cost := messageCost
	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		length := -1
		if tag >= 0 {
			length = protowire.ConsumeFieldValue(number, kind, encoded[tag:])
		}
		if length < 0 {
			return cost // it cannot be decoded either
		}
		cost += fieldCost
		if field := of.Fields().ByNumber(number); kind == protowire.BytesType && field != nil {
			content, _ := protowire.ConsumeBytes(encoded[tag:])
			switch field.Kind() {
			case protoreflect.MessageKind:
				cost += valueCost(field.Message(), content)
			case protoreflect.BytesKind, protoreflect.StringKind:
			default:
				cost += packedCost * len(content)
			}
		}
		encoded = encoded[tag+length:]
	}
	return cost
}
