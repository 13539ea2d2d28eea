package delivery

import "github.com/xmtp-selfhosted/backend/pkg/fault"

const (
	// RegistrationBytes is what a registration is counted as in
	// Config.RegistrationBytes: one of the longest kind of topic that no other
	// stream has and that catches up, with its part of all maps.
	RegistrationBytes = 384
	// UpdateTopicBytes is what a topic of an update takes until it is answered,
	// beside the update's bytes on the wire.
	UpdateTopicBytes = 192
)

// Streams with more than modestTopics topics leave a part of the budget to those
// that have fewer: some that want very many do not lock out the others.
const (
	modestTopics = 1000
	modestPart   = 4
)

var errRegistrations = fault.Errorf(fault.Exhausted,
	"the server holds as many topics of streams as it can: try again later, on another connection or with fewer topics")

// mayRegister says whether so many more bytes fit the budget of registrations, for
// a stream or an update of so many topics.
func (e *Engine) mayRegister(bytes, topics int) bool {
	free := e.registrations.free()
	if topics > modestTopics {
		free -= int(e.registrations.budget.Total()) / modestPart
	}
	return bytes <= free
}

// HoldUpdate counts an update of so many topics and bytes on the wire, from before
// it is decoded until ReleaseUpdate. An error is to end the stream.
func (e *Engine) HoldUpdate(topics, wireBytes int) *fault.Error {
	bytes := updateBytes(topics, wireBytes)
	if !e.mayRegister(bytes, topics) {
		return errRegistrations
	}
	e.registrations.charge(bytes)
	return nil
}

// ReleaseUpdate says that the update is answered, or given up.
func (e *Engine) ReleaseUpdate(topics, wireBytes int) {
	e.registrations.give(updateBytes(topics, wireBytes))
}

func updateBytes(topics, wireBytes int) int { return topics*UpdateTopicBytes + wireBytes }

// pay counts the registrations that the session will have, before any of them is
// made.
func (e *Engine) pay(s *Session, total int) *fault.Error {
	more := total - s.paid
	if more <= 0 {
		return nil
	}
	if !e.mayRegister(more*RegistrationBytes, total) {
		return errRegistrations
	}
	e.registrations.charge(more * RegistrationBytes)
	s.paid = total
	return nil
}

// repay gives back what was paid for more than so many registrations.
func (e *Engine) repay(s *Session, needed int) {
	if s.paid > needed {
		e.registrations.give((s.paid - needed) * RegistrationBytes)
		s.paid = needed
	}
}
