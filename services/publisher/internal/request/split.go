package request

import (
	"math"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// envelopesField is PublishRequest.envelopes.
const envelopesField = 1

// Count is the number of envelopes of an encoded PublishRequest, as far as it
// can be split.
func Count(encoded []byte) int {
	n, _ := count(encoded)
	return n
}

// count fails if the request cannot be split to its end.
func count(encoded []byte) (int, error) {
	n, err := wire.Count(encoded, envelopesField, math.MaxInt32)
	if err != nil {
		return n, fault.Invalidf(fault.MalformedPayload, "the message is not a well-formed PublishRequest")
	}
	return n, nil
}
