package request

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// envelopesField is PublishRequest.envelopes.
const envelopesField = 1

// Count is the number of envelopes of an encoded PublishRequest, as far as it
// can be split.
func Count(wire []byte) int {
	n := 0
	_ = walk(wire, func([]byte) { n++ })
	return n
}

// split returns the encoded envelopes of an encoded PublishRequest, which they
// alias. Unknown fields are skipped.
func split(wire []byte) ([][]byte, error) {
	raw := make([][]byte, 0, Count(wire))
	if err := walk(wire, func(one []byte) { raw = append(raw, one) }); err != nil {
		return nil, err
	}
	return raw, nil
}

func walk(wire []byte, visit func([]byte)) error {
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return undecodable()
		}
		wire = wire[n:]
		if number == envelopesField && kind == protowire.BytesType {
			var one []byte
			if one, n = protowire.ConsumeBytes(wire); n >= 0 {
				visit(one)
			}
		} else {
			n = protowire.ConsumeFieldValue(number, kind, wire)
		}
		if n < 0 {
			return undecodable()
		}
		wire = wire[n:]
	}
	return nil
}

func undecodable() error {
	return fault.Invalidf(fault.MalformedPayload, "the message is not a well-formed PublishRequest")
}
