package browser_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// servePage serves the page from an origin of its own.
func servePage(t *testing.T) string {
	t.Helper()
	install(t)
	script := bundle(t)
	descriptors := descriptorSet(t)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "page/index.html") })
	mux.HandleFunc("GET /page.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(script)
	})
	mux.HandleFunc("GET /descriptors", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(descriptors) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// install fetches the packages that package-lock.json names, unless they are
// there from the last time.
func install(t *testing.T) {
	t.Helper()
	wanted, err := os.ReadFile("package-lock.json")
	require.NoError(t, err)
	marker := filepath.Join("node_modules", ".installed")
	if have, err := os.ReadFile(marker); err == nil && bytes.Equal(have, wanted) {
		return
	}
	output, err := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput()
	require.NoError(t, err, "%s\ntools/need node installs npm", output)
	require.NoError(t, os.WriteFile(marker, wanted, 0o600))
}

// bundle makes one script of the page and the packages.
func bundle(t *testing.T) []byte {
	t.Helper()
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"page/page.js"}, Bundle: true, Format: api.FormatESModule, Platform: api.PlatformBrowser, LogLevel: api.LogLevelSilent,
	})
	require.Empty(t, result.Errors)
	require.Len(t, result.OutputFiles, 1)
	return result.OutputFiles[0].Contents
}

// descriptorSet is the API as the page learns it: each file after those that it
// imports.
func descriptorSet(t *testing.T) []byte {
	t.Helper()
	set, seen := &descriptorpb.FileDescriptorSet{}, map[string]bool{}
	var add func(file protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if seen[file.Path()] {
			return
		}
		seen[file.Path()] = true
		for i := range file.Imports().Len() {
			add(file.Imports().Get(i))
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	add(backendv1.File_xmtp_backend_v1_backend_proto)
	encoded, err := proto.Marshal(set)
	require.NoError(t, err)
	return encoded
}
