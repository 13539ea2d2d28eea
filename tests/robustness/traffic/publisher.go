package traffic

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/tests/robustness/check"
)

// publisher is a client that publishes. It sends a failed request again, as the
// real clients do, and gives up after some attempts.
type publisher struct {
	traffic *Traffic
	client  backendv1.PublishServiceClient
	random  *rand.Rand
	kit     *testkit.Kit
	groups  []testkit.Group
	// member is the inbox of this client, once its registration is stored, and
	// lineage the failovers before that.
	member  *testkit.Client
	lineage int64
	updates int
	epoch   uint64
}

const (
	attempts      = 4
	attemptPause  = 200 * time.Millisecond
	memberUpdates = 40 // then another inbox is registered
)

func newPublisher(t *Traffic, conn *grpc.ClientConn, seed uint64, groups []testkit.Group) *publisher {
	return &publisher{
		traffic: t, client: backendv1.NewPublishServiceClient(conn), kit: testkit.New(seed), groups: groups,
		random: rand.New(rand.NewPCG(seed, 1)),
	}
}

// run publishes until ctx ends. A request that was begun is finished: one that is
// cut off may still be stored, after its client has gone.
func (p *publisher) run(ctx context.Context) {
	for ctx.Err() == nil {
		p.once(context.WithoutCancel(ctx))
		sleep(ctx, time.Duration(p.random.Float64()*2*float64(p.traffic.config.Pause)))
	}
}

// once sends one request of a random kind.
func (p *publisher) once(ctx context.Context) {
	switch n := p.random.IntN(100); {
	case n < 50:
		p.publish(ctx, []*backendv1.ClientEnvelope{p.message()})
	case n < 72: // several topics, and repeats within the request
		var request []*backendv1.ClientEnvelope
		for range 2 + p.random.IntN(8) {
			request = append(request, p.any())
		}
		if p.random.IntN(3) == 0 {
			request = append(request, request[0])
		}
		p.publish(ctx, request)
	case n < 84: // what somebody sent before, maybe at this very moment
		if e := p.traffic.sent.pick(p.random); e != nil {
			p.publish(ctx, []*backendv1.ClientEnvelope{e, p.message()})
		}
	case n < 96:
		p.identity(ctx)
	default:
		p.broken(ctx)
	}
}

func (p *publisher) group() testkit.Group {
	// The square makes some topics busy and leaves others quiet.
	at := p.random.Float64()
	return p.groups[int(at*at*float64(len(p.groups)))]
}

func (p *publisher) message() *backendv1.ClientEnvelope {
	size := 64 + p.random.IntN(1024)
	if p.random.IntN(50) == 0 {
		size = 100_000 // longer than a notice carries
	}
	return p.kit.GroupMessage(p.group(), size)
}

func (p *publisher) any() *backendv1.ClientEnvelope {
	p.epoch++
	switch p.random.IntN(10) {
	case 0:
		return p.kit.Commit(p.group(), p.epoch)
	case 1:
		group := p.group()
		p.traffic.topics.add(group.CommitLogTopic())
		return p.kit.CommitLogEntry(group, 1, p.epoch)
	case 2:
		if p.member != nil {
			return p.kit.Welcome(p.member.Installation.PublicKey(), 500)
		}
	}
	return p.message()
}

// identity registers an inbox or adds to it, one update at a time. After a
// failover, which may have lost the inbox, it registers another.
func (p *publisher) identity(ctx context.Context) {
	if p.member == nil || p.updates >= memberUpdates || p.lineage != p.traffic.failovers.Load() {
		client := p.kit.Client()
		now := time.Now()
		p.lineage = p.traffic.failovers.Load()
		registration := client.Registration(now)
		if p.publish(ctx, []*backendv1.ClientEnvelope{registration}) {
			p.member, p.updates = client, 0
			p.traffic.inboxes.add(&inbox{client: client, registration: registration, wallets: []string{client.Wallet.Address()}})
			p.traffic.topics.add(client.Topic())
			p.traffic.topics.add(client.WelcomeTopic())
			p.publish(ctx, []*backendv1.ClientEnvelope{client.KeyPackage(now)})
		}
		return
	}
	p.updates++
	update, _ := p.member.AddInstallation(time.Now())
	p.publish(ctx, []*backendv1.ClientEnvelope{update, p.message()})
}

// broken sends a request that must be refused whole.
func (p *publisher) broken(ctx context.Context) {
	all := p.kit.Broken(time.Now())
	request := []*backendv1.ClientEnvelope{p.message(), all[p.random.IntN(len(all))].Envelope}
	// Only the good one could be stored.
	contents := []check.Hash{hashOf(request[0])}
	p.traffic.Recorder.offer(contents)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch _, err := p.client.Publish(ctx, &backendv1.PublishRequest{Envelopes: request}); {
	case err == nil:
		p.traffic.Recorder.surprise("a broken envelope was accepted")
	case status.Code(err) == codes.InvalidArgument:
		p.traffic.Recorder.refused(contents)
	default:
		p.traffic.Recorder.failed("Publish", err)
	}
}

// publish sends a request until it is acknowledged, and says whether it was.
func (p *publisher) publish(ctx context.Context, request []*backendv1.ClientEnvelope) bool {
	recorder := p.traffic.Recorder
	contents := make([]check.Hash, len(request))
	for i, e := range request {
		contents[i] = hashOf(e)
	}
	recorder.offer(contents)
	p.traffic.sent.put(p.random, request)
	begun := recorder.now()
	for range attempts {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		response, err := p.client.Publish(call, &backendv1.PublishRequest{Envelopes: request})
		cancel()
		if err == nil {
			recorder.acknowledged(begun, contents, response)
			return true
		}
		if status.Code(err) == codes.InvalidArgument && p.lineage != p.traffic.failovers.Load() && holdsUpdate(request) {
			recorder.lost() // with the inbox, or what the update builds on
			return false
		}
		recorder.failed("Publish", err)
		sleep(ctx, attemptPause)
	}
	return false
}

func holdsUpdate(request []*backendv1.ClientEnvelope) bool {
	return slices.ContainsFunc(request, func(e *backendv1.ClientEnvelope) bool { return e.GetIdentityUpdate() != nil })
}

// recent holds envelopes that were sent lately, by all publishers.
type recent struct {
	mu  sync.Mutex
	all []*backendv1.ClientEnvelope
}

const recentLimit = 500

func (r *recent) put(random *rand.Rand, envelopes []*backendv1.ClientEnvelope) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range envelopes {
		if e.GetIdentityUpdate() != nil {
			continue // a repeat races with what it depends on
		}
		if len(r.all) < recentLimit {
			r.all = append(r.all, e)
		} else {
			r.all[random.IntN(recentLimit)] = e
		}
	}
}

func (r *recent) pick(random *rand.Rand) *backendv1.ClientEnvelope {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) == 0 {
		return nil
	}
	return r.all[random.IntN(len(r.all))]
}
