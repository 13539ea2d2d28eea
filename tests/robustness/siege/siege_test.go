package siege_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/xmtp-selfhosted/backend/tests/proxy"
	"github.com/xmtp-selfhosted/backend/tests/robustness/attack"
	"github.com/xmtp-selfhosted/backend/tests/robustness/fault"
	"github.com/xmtp-selfhosted/backend/tests/robustness/report"
	"github.com/xmtp-selfhosted/backend/tests/robustness/siege"
)

// Flags of long runs; make attack sets them.
var (
	long         = flag.Duration("long", 0, "how long each attack takes; latencies are judged then, too. 0: a short run that does not")
	document     = flag.String("document", "", "document whose section on the last attacks is replaced")
	installation = flag.String("installation", "default", "whose pods are attacked: default or small")
	programs     = flag.String("binaries", "", "a folder with the programs, such as those of another tree: publisher, reader, streamer, gateway and attack. Empty: they are built")
	one          = flag.String("attack", "", "the name of the only attack of TestEachAttack")
)

// binaries are the programs, built once for all tests.
var binaries string

func TestMain(m *testing.M) {
	flag.Parse()
	if *programs != "" {
		binaries = *programs
		os.Exit(m.Run())
	}
	code, err := build(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func build(run func() int) (int, error) {
	dir, err := os.MkdirTemp("", "xmtp-siege-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := siege.Build(context.Background(), dir); err != nil {
		return 1, err
	}
	binaries = dir
	return run(), nil
}

// start is a backend with a topic that fills pages.
func start(t *testing.T) (fleet *siege.Fleet, topic string) {
	t.Helper()
	dir, err := fault.TempDir()
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, file := range logs {
				content, _ := os.ReadFile(file)
				t.Logf("%s ends with: %s", filepath.Base(file), content[max(0, len(content)-1500):])
			}
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	pods, err := siege.Pods(*installation)
	require.NoError(t, err)
	fleet, err = siege.Start(t.Context(), dir, binaries, pods)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Stop()) })
	topic, err = siege.FillTopic(t.Context(), fleet)
	require.NoError(t, err)
	return fleet, topic
}

// direct is a siege of the gateway itself, through is one of the documented nginx
// in front of it.
func direct(fleet *siege.Fleet, topic string) *siege.Siege {
	return &siege.Siege{Fleet: fleet, Entrance: fleet.Roles["gateway"].Address, Transport: insecure.NewCredentials(), Topic: topic}
}

func through(t *testing.T, fleet *siege.Fleet, topic string) *siege.Siege {
	t.Helper()
	nginx := proxy.Start(t, fleet.Roles["gateway"].Address)
	return &siege.Siege{Fleet: fleet, Entrance: nginx.Address, Transport: credentials.NewClientTLSFromCert(nginx.Roots, ""), Proxied: true, Topic: topic}
}

// Each attack, against the gateway and through nginx: nobody is larger than its
// pod, others are served, what is refused is in the metrics, and nothing remains.
func TestEachAttack(t *testing.T) {
	fleet, topic := start(t)
	var results []*siege.Result
	for _, s := range []*siege.Siege{direct(fleet, topic), through(t, fleet, topic)} {
		s.Quiet, s.Attack = 300*time.Millisecond, 2*time.Second
		if *long > 0 {
			s.Quiet, s.Attack = *long/2, *long
		}
		t.Run(map[bool]string{false: "gateway", true: "nginx"}[s.Proxied], func(t *testing.T) {
			for _, a := range attack.All() {
				if *one == "" && !a.Crowded || a.Name == *one {
					t.Run(a.Name, func(t *testing.T) { results = append(results, run(t, s, 5, a)) })
				}
			}
		})
	}
	write(t, "attacks", results)
}

// A crowd of hostile clients of several kinds at once.
func TestACrowdOfHostileClients(t *testing.T) {
	fleet, topic := start(t)
	s := direct(fleet, topic)
	s.Quiet, s.Attack = 2*time.Second, 20*time.Second
	if *long > 0 {
		s.Quiet, s.Attack = *long, 2*time.Minute
	}
	var crowd []attack.Attack
	for _, name := range []string{"unread-answers-1000", "standing-answers", "slow-streams", "empty-actions"} {
		a, err := attack.Named(name)
		require.NoError(t, err)
		crowd = append(crowd, a)
	}
	write(t, "crowd", []*siege.Result{run(t, s, 3, crowd...)})
}

func run(t *testing.T, s *siege.Siege, slowerAtMost float64, attacks ...attack.Attack) *siege.Result {
	t.Helper()
	r, err := s.Run(t.Context(), attacks...)
	require.NoError(t, err)
	t.Logf("%s: 99th percentile %.1f times the quiet one\n%s", r.Attack, r.Ratio(), r)
	problems := r.Problems()
	if *long > 0 {
		problems = append(problems, r.Slow(slowerAtMost)...)
	}
	assert.Empty(t, problems)
	return r
}

// write replaces a section of the document of a long run.
func write(t *testing.T, section string, results []*siege.Result) {
	t.Helper()
	var table strings.Builder
	require.NoError(t, siege.Table(&table, results...))
	t.Log("\n" + table.String())
	if *document != "" && *one == "" {
		require.NoError(t, report.ReplaceSection(*document, section, fmt.Sprintf("%s, %s each, pods of the %s values.\n\n%s",
			time.Now().UTC().Format("2006-01-02 15:04 MST"), *long, *installation, table.String())))
	}
}
