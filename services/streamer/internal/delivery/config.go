package delivery

import "time"

// Config bounds an Engine. All fields are positive.
type Config struct {
	// FrameBytes is the most that a Messages frame carries, unless one envelope
	// alone is longer.
	FrameBytes int
	// PageBytes is how many payload bytes one fetch asks for.
	PageBytes int
	// PageRows is how many rows one fetch asks for, over all its topics.
	PageRows int
	// PageTopics is the most topics of one fetch.
	PageTopics int
	// EnvelopeBytes is the longest envelope: a page may exceed PageBytes by one.
	EnvelopeBytes int
	// Fetches is how many fetches run at a time.
	Fetches int

	// SessionFrames and SessionBytes bound the queued output of one session.
	SessionFrames int
	SessionBytes  int
	// NoticeBytes bounds the notices kept for all topics, the oldest go first.
	NoticeBytes int
	// BudgetBytes bounds pages in flight, queued output and what the transports hold
	// of all sessions.
	BudgetBytes int
	// RegistrationBytes bounds the registrations of all sessions, and the updates
	// that are on their way.
	RegistrationBytes int

	// SharedBytes is from which length on an envelope is not copied into each frame.
	SharedBytes int

	// LiveFrames is how many frames of live output go before one of history.
	LiveFrames int

	// StepTopics is how many registrations one Step or Close handles.
	StepTopics int
	// MaxTopics is the most registrations of a session.
	MaxTopics int

	// SlowClient is how long a full output may stand still, and any output while the
	// budget is short.
	SlowClient time.Duration
	// LostDatabase is how long streams stay open without a database connection.
	LostDatabase time.Duration
}

// A session may hold one part in budgetShare of what is free of the budget in its
// output, so that some always stays free for other sessions, however many do not
// read. The last part in reservedPart is for output of modestBytes at most, or of one
// part in modestOutput of a budget that is tiny.
const (
	budgetShare  = 8
	reservedPart = 4
	modestBytes  = 64 << 10
	modestOutput = 256
)
