package stream

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// receiveGrace is how long nothing has to have come before a missing Pong is
// declared: frames already received go first.
const receiveGrace = 100 * time.Millisecond

// keepalive watches one session with one timer. It never looks at the database:
// a session whose path to it is broken is ended by the engine.
type keepalive struct {
	mu       sync.Mutex
	session  *session
	timer    *time.Timer // nil before start and after stop
	stopped  bool
	lastSent time.Time
	// nonce of the ping that is outstanding, if one is; handed is when the
	// transport took it, or zero.
	nonce       uint64
	outstanding bool
	handed      time.Time
	// idle is since when the receiver has waited for a frame, or zero.
	idle time.Time
}

// start begins when Started has been sent.
func (k *keepalive) start(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.session = s
	k.lastSent = time.Now()
	if !k.stopped {
		k.timer = time.AfterFunc(s.hub.limits.KeepaliveInterval, k.tick)
	}
}

func (k *keepalive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	if k.timer != nil {
		k.timer.Stop()
	}
}

// sent notes a frame that the transport took.
func (k *keepalive) sent(f *delivery.Frame) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lastSent = time.Now()
	if f.Kind == delivery.Ping && !k.stopped {
		k.handed = k.lastSent
		k.timer.Reset(k.session.hub.config.PongTimeout)
	}
}

// receiving notes that the receiver waits for a frame, or has one.
func (k *keepalive) receiving(waits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = time.Time{}
	if waits {
		k.idle = time.Now()
	}
}

// pong notes an answer; one with another nonce is none.
func (k *keepalive) pong(nonce uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.outstanding || nonce != k.nonce {
		return
	}
	k.outstanding = false
	if !k.stopped {
		k.timer.Reset(max(0, time.Until(k.lastSent.Add(k.session.hub.limits.KeepaliveInterval))))
	}
}

func (k *keepalive) tick() {
	probe, late := k.due(time.Now())
	switch {
	case late:
		k.session.end(fault.Errorf(fault.Late, "no Pong arrived for a Ping sent %v ago", k.session.hub.config.PongTimeout).OfCaller())
	case probe != nil:
		k.session.control(probe)
	}
}

// due returns the frame to send now, or that the client did not answer, and
// sets the timer.
func (k *keepalive) due(now time.Time) (probe *delivery.Frame, late bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	interval := k.session.hub.limits.KeepaliveInterval
	next := interval
	switch {
	case k.stopped:
		return nil, false
	case k.outstanding && k.handed.IsZero(): // sent sets the timer
	case k.outstanding:
		if next = k.handed.Add(k.session.hub.config.PongTimeout).Sub(now); next > 0 {
			break
		}
		if !k.idle.IsZero() && now.Sub(k.idle) >= receiveGrace {
			return nil, true
		}
		next = receiveGrace
	case now.Sub(k.lastSent) < interval:
		next = k.lastSent.Add(interval).Sub(now)
	case k.session.fields[delivery.Keepalive] != 0:
		probe = &delivery.Frame{Kind: delivery.Keepalive}
		k.lastSent = now // one at a time, though the transport may not take it yet
	default:
		k.nonce, k.outstanding, k.handed = rand.Uint64(), true, time.Time{}
		probe = &delivery.Frame{Kind: delivery.Ping, Nonce: k.nonce}
	}
	k.timer.Reset(next)
	return probe, false
}
