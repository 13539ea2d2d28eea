package stream

import (
	"errors"
	"fmt"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Config bounds what streams hold in memory and how long they wait.
type Config struct {
	// OutputFrames and OutputBytes bound the queued output of one stream.
	OutputFrames int `env:"STREAM_OUTPUT_FRAMES" envDefault:"64"`
	OutputBytes  int `env:"STREAM_OUTPUT_BYTES"  envDefault:"16777216"`
	// FrameBytes is about how long a Messages frame gets.
	FrameBytes int `env:"STREAM_FRAME_BYTES" envDefault:"2097152"`
	// PageBytes and PageRows bound one read of history. A stream has one page on
	// its way at a time, so these also bound what is fetched and not yet queued.
	PageBytes int `env:"STREAM_PAGE_BYTES" envDefault:"1572864"`
	PageRows  int `env:"STREAM_PAGE_ROWS"  envDefault:"2048"`
	// NoticeBytes bounds the recent notices kept for streams that catch up.
	NoticeBytes int `env:"STREAM_NOTICE_BYTES" envDefault:"268435456"`
	// BudgetBytes bounds the pages on their way, the output of all streams, and what
	// their transports have not written.
	BudgetBytes int `env:"STREAM_BUDGET_BYTES" envDefault:"536870912"`
	// RegistrationBytes bounds the topics of all streams, 384 bytes each, and the
	// updates that add them. The last quarter is for streams of at most 1,000 topics.
	RegistrationBytes int `env:"STREAM_REGISTRATION_BYTES" envDefault:"268435456"`
	// Fetches and HeadReads bound the database connections in use at a time.
	Fetches   int `env:"STREAM_FETCHES"    envDefault:"4"`
	HeadReads int `env:"STREAM_HEAD_READS" envDefault:"4"`
	// SlowClientTimeout ends a stream whose output is full while its transport
	// takes nothing.
	SlowClientTimeout time.Duration `env:"SLOW_CLIENT_TIMEOUT" envDefault:"30s"`
	// PongTimeout ends a bidirectional stream whose client does not answer.
	PongTimeout time.Duration `env:"PONG_TIMEOUT" envDefault:"90s"`
	// DatabaseGrace is how long streams stay open without the database.
	DatabaseGrace time.Duration `env:"STREAM_DATABASE_GRACE" envDefault:"60s"`
}

// sweepConnections are those that reading by itself needs: the sweep and a check
// of the instance.
const sweepConnections = 2

// Connections is how many database connections streams use at most.
func (c Config) Connections() int { return c.Fetches + c.HeadReads + sweepConnections }

// Validate names each variable that is out of range.
func (c Config) Validate() error {
	var errs []error
	for _, positive := range []struct {
		name  string
		value int
	}{
		{"STREAM_OUTPUT_FRAMES", c.OutputFrames},
		{"STREAM_OUTPUT_BYTES", c.OutputBytes},
		{"STREAM_FRAME_BYTES", c.FrameBytes},
		{"STREAM_PAGE_BYTES", c.PageBytes},
		{"STREAM_PAGE_ROWS", c.PageRows},
		{"STREAM_NOTICE_BYTES", c.NoticeBytes},
		{"STREAM_BUDGET_BYTES", c.BudgetBytes},
		{"STREAM_REGISTRATION_BYTES", c.RegistrationBytes},
		{"STREAM_FETCHES", c.Fetches},
		{"STREAM_HEAD_READS", c.HeadReads},
	} {
		if positive.value < 1 {
			errs = append(errs, fmt.Errorf("XMTP_%s is %d, expected at least 1", positive.name, positive.value))
		}
	}
	if c.FrameBytes > limit.MaxFrameBytes {
		errs = append(errs, fmt.Errorf("XMTP_STREAM_FRAME_BYTES is %d, expected at most %d", c.FrameBytes, limit.MaxFrameBytes))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"SLOW_CLIENT_TIMEOUT", c.SlowClientTimeout},
		{"PONG_TIMEOUT", c.PongTimeout},
		{"STREAM_DATABASE_GRACE", c.DatabaseGrace},
	} {
		if d.value < time.Millisecond {
			errs = append(errs, fmt.Errorf("XMTP_%s is %v, expected at least 1ms", d.name, d.value))
		}
	}
	return errors.Join(errs...)
}

// ValidateWith checks the bounds against the limits: one envelope of the longest
// kind always has to fit.
func (c Config) ValidateWith(limits limit.Config) error {
	envelope := envelopeBytes(limits)
	var errs []error
	if c.FrameBytes < envelope {
		errs = append(errs, fmt.Errorf("XMTP_STREAM_FRAME_BYTES is %d, expected at least %d: XMTP_MAX_ENVELOPE_BYTES with its metadata", c.FrameBytes, envelope))
	}
	if page := c.PageBytes + envelope; c.OutputBytes < page {
		errs = append(errs, fmt.Errorf("XMTP_STREAM_OUTPUT_BYTES is %d, expected at least %d: a page and an envelope", c.OutputBytes, page))
	}
	pages := c.Fetches * (c.PageBytes + envelope + c.PageRows*limit.EnvelopeOverheadBytes)
	answer := delivery.AnswerBytes(int(max(limits.MaxUpdateAdds, limits.MaxStaticTopics)))
	if least := 2 * max(pages, answer); c.BudgetBytes < least {
		errs = append(errs, fmt.Errorf("XMTP_STREAM_BUDGET_BYTES is %d, expected at least %d: twice what XMTP_STREAM_FETCHES pages or an answer to XMTP_MAX_UPDATE_ADDS topics may hold", c.BudgetBytes, least))
	}
	if least := leastRegistrations(limits); c.RegistrationBytes < least {
		errs = append(errs, fmt.Errorf("XMTP_STREAM_REGISTRATION_BYTES is %d, expected at least %d: twice what a stream of XMTP_MAX_STREAM_TOPICS needs to be opened", c.RegistrationBytes, least))
	}
	return errors.Join(errs...)
}

// leastRegistrations has room for two streams that hold all the topics they may, and
// the update that registered them.
func leastRegistrations(limits limit.Config) int {
	const topicOnWire = 64
	topics := int(max(limits.MaxStreamTopics, limits.MaxStaticTopics))
	update := int(max(limits.MaxUpdateAdds+limits.MaxUpdateRemoves, limits.MaxStaticTopics))
	return 2 * (topics*delivery.RegistrationBytes + update*(delivery.UpdateTopicBytes+topicOnWire))
}

func envelopeBytes(limits limit.Config) int {
	return int(limits.MaxEnvelopeBytes) + limit.EnvelopeOverheadBytes
}

// pageTopics is the most topics of one read.
const pageTopics = 128

// liveFrames is how many frames of live output go before one of history: what is
// live waits for one frame at most, and history never starves.
const liveFrames = 4

// stepTopics is how many registrations the engine handles before it turns to
// other streams.
const stepTopics = 512

func engineConfig(c Config, limits limit.Config) delivery.Config {
	return delivery.Config{
		FrameBytes:    c.FrameBytes,
		PageBytes:     c.PageBytes,
		PageRows:      c.PageRows,
		PageTopics:    pageTopics,
		EnvelopeBytes: envelopeBytes(limits),
		Fetches:       c.Fetches,
		SessionFrames: c.OutputFrames,
		SessionBytes:  c.OutputBytes,
		NoticeBytes:   c.NoticeBytes,
		BudgetBytes:   c.BudgetBytes,
		SharedBytes:   copyBelow,

		RegistrationBytes: c.RegistrationBytes,

		LiveFrames:   liveFrames,
		StepTopics:   stepTopics,
		MaxTopics:    int(limits.MaxStreamTopics),
		SlowClient:   c.SlowClientTimeout,
		LostDatabase: c.DatabaseGrace,
	}
}
