package browser_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// soon bounds every wait of these tests.
const soon = 30 * time.Second

// tab is one page in a browser of the test's own.
type tab struct {
	ctx context.Context //nolint:containedctx // chromedp's handle of the page
}

// openTab starts Chromium with nothing kept from before and no calls home, and
// loads a page.
func openTab(t *testing.T, url string) tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)),
		chromedp.NoSandbox, // a container has no user namespaces for it
		chromedp.IgnoreCertErrors,
		chromedp.WindowSize(1280, 900),
		chromedp.Flag("disable-gpu", true),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
	)
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	page := tab{ctx}
	require.NoError(t, page.within(func(ctx context.Context) error {
		_, err := chromedp.Run(ctx, chromedp.Navigate(url))
		return err
	}))
	return page
}

// chromium is the first browser that is installed.
func chromium(t *testing.T) string {
	t.Helper()
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.Fail(t, "no browser; tools/need chromium installs it", "expected one of %s", strings.Join(names, ", "))
	return ""
}

// within runs a step whose time is bounded.
func (p tab) within(step func(ctx context.Context) error) error {
	first := chromedp.FromContext(p.ctx).Target == nil
	if first { // the browser lives as long as the context of its first step
		if _, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool]("true")); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(p.ctx, soon)
	defer cancel()
	return step(ctx)
}

// call runs a function of the page with arguments that become JSON, and decodes
// what its promise gives.
func call[Result any](t *testing.T, p tab, function string, arguments ...any) Result {
	t.Helper()
	encoded := make([]string, len(arguments))
	for i, argument := range arguments {
		text, err := json.Marshal(argument)
		require.NoError(t, err)
		encoded[i] = string(text)
	}
	return evaluate[Result](t, p, fmt.Sprintf("%s(%s)", function, strings.Join(encoded, ", ")))
}

func evaluate[Result any](t *testing.T, p tab, script string) Result {
	t.Helper()
	var encoded string
	require.NoError(t, p.within(func(ctx context.Context) (err error) {
		encoded, err = chromedp.Run(ctx, chromedp.Evaluate[string](
			"Promise.resolve("+script+").then((value) => JSON.stringify(value ?? null))", chromedp.EvalAwaitPromise))
		return err
	}), script)
	var result Result
	require.NoError(t, json.Unmarshal([]byte(encoded), &result), "%s gave %s", script, encoded)
	return result
}

// screenshot is the whole page as PNG.
func (p tab) screenshot(t *testing.T) []byte {
	t.Helper()
	var picture []byte
	require.NoError(t, p.within(func(ctx context.Context) (err error) {
		picture, err = chromedp.Run(ctx, chromedp.FullScreenshot(100))
		return err
	}))
	return picture
}
