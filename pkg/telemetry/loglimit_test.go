package telemetry_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/telemetry"
	"github.com/xmtp-selfhosted/backend/pkg/telemetry/logtest"
)

func TestALogIsNotFilledByOneKindOfLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := logtest.New()
		logger := telemetry.NewLogger(telemetry.Config{LogLevel: "info", LogFormat: "json"}, out)
		for range 1000 {
			logger.Warn("call", "method", "/a/B", "code", "Unavailable")
		}
		logger.Warn("call", "method", "/a/B", "code", "Internal")
		logger.With("role", "x").Error("something else")
		require.Equal(t, 12, strings.Count(out.String(), "\n"))
		time.Sleep(time.Second)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		require.Len(t, lines, 13)
		require.Contains(t, lines[12], `"level":"WARN","msg":"lines like this one were left out: call","lines":990,"method":"/a/B","code":"Unavailable"`)
		for range 10 {
			logger.Warn("call", "method", "/a/B", "code", "Unavailable")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 13+10, strings.Count(out.String(), "\n"), "as many as are allowed are no reason for another line")
	})
}

func TestManyKindsOfLinesAreBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := logtest.New()
		logger := telemetry.NewLogger(telemetry.Config{LogLevel: "info"}, out)
		for i := range 5000 {
			logger.Warn("call", "method", fmt.Sprint(i))
		}
		require.Equal(t, 1010, strings.Count(out.String(), "\n"))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Contains(t, out.String(), "lines of many kinds")
	})
}
