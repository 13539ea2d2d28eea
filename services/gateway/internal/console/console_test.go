package console_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/services/gateway/internal/console"
)

func TestThePageAndNothingElse(t *testing.T) {
	for path, contentType := range map[string]string{
		"/": "text/html; charset=utf-8", "/console.js": "text/javascript; charset=utf-8", "/console.css": "text/css; charset=utf-8",
	} {
		answer := httptest.NewRecorder()
		console.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		require.Equal(t, http.StatusOK, answer.Code, path)
		require.Equal(t, contentType, answer.Header().Get("Content-Type"), path)
		require.Contains(t, answer.Header().Get("Content-Security-Policy"), "default-src 'none'", path)
		require.NotContains(t, answer.Header().Get("Content-Security-Policy"), "unsafe", path)
	}
	for _, path := range []string{"/index.html", "/other", "/page/console.js", "/../console.go"} {
		answer := httptest.NewRecorder()
		console.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		require.NotEqual(t, http.StatusOK, answer.Code, path)
	}
}
