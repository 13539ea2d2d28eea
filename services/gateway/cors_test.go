package gateway_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const origin = "https://app.example.org"

// post is what a page of another origin sends.
func post(t *testing.T, f *front, contentType, path string, body []byte) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+f.address+path, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Origin", origin)
	return do(t, request)
}

func do(t *testing.T, request *http.Request) *http.Response {
	t.Helper()
	response, err := (&http.Client{Transport: transport(t, false)}).Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return response
}

func preflight(t *testing.T, f *front, from string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, "http://"+f.address+"/xmtp.backend.v1.PublishService/Publish", nil)
	require.NoError(t, err)
	request.Header.Set("Origin", from)
	request.Header.Set("Access-Control-Request-Method", "POST")
	request.Header.Set("Access-Control-Request-Headers", "authorization,content-type,x-app-version,x-grpc-web,x-libxmtp-version")
	return do(t, request)
}

// Proves API-161, API-165.
func TestCORS(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	allowed := preflight(t, f, origin)
	require.Less(t, allowed.StatusCode, 300)
	require.Equal(t, "*", allowed.Header.Get("Access-Control-Allow-Origin"))
	require.Contains(t, allowed.Header.Get("Access-Control-Allow-Methods"), "POST")
	for _, name := range []string{"authorization", "content-type", "x-app-version", "x-grpc-web", "x-libxmtp-version"} {
		require.Contains(t, strings.ToLower(allowed.Header.Get("Access-Control-Allow-Headers")), name)
	}
	answers := map[string]*http.Response{
		"error":      post(t, f, "application/grpc-web+proto", "/xmtp.backend.v1.PublishService/Publish", make([]byte, 5)),
		"success":    post(t, f, "application/grpc-web+proto", "/xmtp.backend.v1.QueryService/Query", make([]byte, 5)),
		"unknown":    post(t, f, "application/grpc-web+proto", "/xmtp.backend.v1.QueryService/Nothing", make([]byte, 5)),
		"text":       post(t, f, "application/grpc-web-text", "/xmtp.backend.v1.QueryService/Query", []byte("AAAAAAA=")),
		"json error": post(t, f, "application/json", "/xmtp.backend.v1.PublishService/Publish", []byte("{}")),
		"bad type":   post(t, f, "text/plain", "/xmtp.backend.v1.PublishService/Publish", []byte("{}")),
	}
	for name, answer := range answers {
		require.Equal(t, "*", answer.Header.Get("Access-Control-Allow-Origin"), name)
		exposed := strings.ToLower(answer.Header.Get("Access-Control-Expose-Headers"))
		for _, header := range []string{"grpc-status", "grpc-message", "grpc-status-details-bin", "x-request-id"} {
			require.Contains(t, exposed, header, name)
		}
		require.NotEmpty(t, answer.Header.Get("X-Request-Id"), name)
	}
	// An error before any message has its status in the headers.
	require.Equal(t, "3", answers["error"].Header.Get("Grpc-Status"))
	require.NotEmpty(t, answers["error"].Header.Get("Grpc-Status-Details-Bin"))
}

func TestOnlyConfiguredOriginsAreAllowed(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, map[string]string{"XMTP_CORS_ORIGINS": "https://app.example.org,https://*.example.net"})
	require.Equal(t, origin, preflight(t, f, origin).Header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "https://a.example.net", preflight(t, f, "https://a.example.net").Header.Get("Access-Control-Allow-Origin"))
	require.Empty(t, preflight(t, f, "https://evil.example.com").Header.Get("Access-Control-Allow-Origin"))
}

func TestAPersonCanCallWithCurl(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	answer := post(t, f, "application/json", "/xmtp.backend.v1.QueryService/Query", []byte(`{"queries":[{"topic":{"topic":"AAE="}}],"later":1}`))
	require.Equal(t, http.StatusOK, answer.StatusCode)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"continuation":{"hasMore":true}}`, string(body))

	wrong := post(t, f, "application/json", "/xmtp.backend.v1.QueryService/Query", []byte(`{"limit":"many"}`))
	require.Equal(t, http.StatusBadRequest, wrong.StatusCode)
	var failure struct{ Code, Message string }
	require.NoError(t, json.NewDecoder(wrong.Body).Decode(&failure))
	require.Equal(t, "invalid_argument", failure.Code)
	require.Contains(t, failure.Message, "limit")
}

// A short text of very many empty objects would be long once it is decoded.
func TestTheValuesOfAJSONMessageAreBounded(t *testing.T) {
	role := behavingRole()
	role.start(t, "")
	f := startGateway(t, role, nil)
	const limit = 1 << 19
	query := func(last string) *http.Response {
		return post(t, f, "application/json", "/xmtp.backend.v1.QueryService/Query", []byte(`{"queries":[`+strings.Repeat("{},", limit/2-1)+last+`]}`))
	}
	require.Equal(t, http.StatusOK, query(`{}`).StatusCode)
	refused := query(`{"topic":null,"cursor":null}`)
	require.Equal(t, http.StatusBadRequest, refused.StatusCode)
	var failure struct{ Code, Message string }
	require.NoError(t, json.NewDecoder(refused.Body).Decode(&failure))
	require.Equal(t, "invalid_argument", failure.Code)
	require.Contains(t, failure.Message, "524289 braces and commas, expected at most 524288")
}
