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
	n, _ := count(wire)
	return n
}

// count fails if the request cannot be split to its end.
func count(wire []byte) (n int, err error) {
	err = walk(wire, func([]byte) bool {
		n++
		return true
	})
	return n, err
}

// walk visits the encoded envelopes of an encoded PublishRequest, which they
// alias, until visit returns false. Unknown fields are skipped.
func walk(wire []byte, visit func([]byte) bool) error {
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return undecodable()
		}
		wire = wire[n:]
		if number == envelopesField && kind == protowire.BytesType {
			var one []byte
			if one, n = protowire.ConsumeBytes(wire); n >= 0 && !visit(one) {
				return nil
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
