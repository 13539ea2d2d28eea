package request

import (
	"github.com/xmtp-selfhosted/backend/pkg/envelope"
	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
)

// The fields of the messages.
const (
	envelopesField      = 1 // of PublishRequest
	keyPackageField     = 3 // of ClientEnvelope
	identityUpdateField = 4
)

// shortestEnvelope is less than any envelope has: each names at least a group.
const shortestEnvelope = topic.GroupIDLength

// Outline is what a look at an encoded PublishRequest shows without parsing its
// envelopes: enough to reckon what it takes.
type Outline struct {
	// Wire is the length of the request.
	Wire int
	// Envelopes is how many will be parsed at most. What cannot be an envelope is the
	// last one.
	Envelopes int
	// Checked of them are key packages or identity updates, which are not only parsed.
	Checked int
	// Identity says that identity updates are among them.
	Identity bool
	// Hopeless says that one cannot be an envelope: the request will be refused.
	Hopeless bool

	encoded []byte
}

// Look reads an encoded PublishRequest as far as it can without taking memory. It
// refuses what cannot be split, and what has more envelopes than a response has room for.
func Look(encoded []byte, limits limit.Config) (Outline, error) {
	o := Outline{Wire: len(encoded), encoded: encoded}
	m := wire.Read(encoded)
	for m.Next() {
		if m.IsBytes(envelopesField) && !o.Hopeless {
			o.add(m.Bytes())
		}
	}
	if m.Err() != nil {
		return o, fault.Invalidf(fault.MalformedPayload, "the message is not a well-formed PublishRequest")
	}
	if !o.Hopeless {
		return o, checkResponse(o.Envelopes*leastEntry, limits)
	}
	return o, nil
}

// leastEntry is the least that an envelope has in a response.
var leastEntry = entrySize(envelope.Meta{Topic: topic.Topic(make([]byte, 1+topic.GroupIDLength)), SequenceID: 1})

func (o *Outline) add(one []byte) {
	o.Envelopes++
	o.Hopeless = len(one) < shortestEnvelope
	checked := false
	for m := wire.Read(one); m.Next(); {
		update := m.IsBytes(identityUpdateField)
		o.Identity = o.Identity || update
		checked = checked || update || m.IsBytes(keyPackageField)
	}
	if checked {
		o.Checked++
	}
}
