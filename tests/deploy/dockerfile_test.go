package deploy

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// instruction is one line of the Dockerfile, its continuations joined.
type instruction struct{ word, rest string }

func dockerfile(t *testing.T) []instruction {
	t.Helper()
	content, err := os.ReadFile(repository + "/Dockerfile")
	require.NoError(t, err)
	var instructions []instruction
	for _, line := range strings.Split(strings.ReplaceAll(string(content), "\\\n", " "), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		word, rest, _ := strings.Cut(line, " ")
		instructions = append(instructions, instruction{word, strings.TrimSpace(rest)})
	}
	return instructions
}

// mounts are caches of the builder, which nothing depends on.
var mounts = regexp.MustCompile(`--mount=\S+`)

// TestTheBuildStepsOfTheDockerfile runs them as they are written, in this
// repository, for every program.
func TestTheBuildStepsOfTheDockerfile(t *testing.T) {
	root, err := filepath.Abs(repository)
	require.NoError(t, err)
	for _, program := range append(roleNames, "xmtpctl") {
		t.Run(program, func(t *testing.T) {
			out := t.TempDir()
			environment := append(os.Environ(), "GOWORK=", "ROLE="+program, "VERSION=1.2.3-test")
			ran := 0
			for _, step := range dockerfile(t) {
				switch step.word {
				case "ENV":
					environment = append(environment, strings.Fields(step.rest)...)
				case "RUN":
					ran++
					command := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.ReplaceAll(mounts.ReplaceAllString(step.rest, ""), "/out", out))
					command.Dir, command.Env = root, environment
					output, err := command.CombinedOutput()
					require.NoError(t, err, "%s", output)
				}
			}
			require.Equal(t, 1, ran)
			binary, err := elf.Open(filepath.Join(out, "program"))
			require.NoError(t, err)
			defer func() { require.NoError(t, binary.Close()) }()
			libraries, err := binary.ImportedLibraries()
			require.NoError(t, err)
			require.Empty(t, libraries, "a static binary")
			require.Nil(t, binary.Section(".interp"), "no loader")
			if program == "gateway" {
				content, err := os.ReadFile(filepath.Join(out, "program"))
				require.NoError(t, err)
				require.Contains(t, string(content), "1.2.3-test", "the version is told to clients")
			}
		})
	}
}

func TestTheImageHasNoShellAndNoRoot(t *testing.T) {
	var last []instruction // those of the final stage
	for _, step := range dockerfile(t) {
		if step.word == "FROM" {
			last = nil
		}
		last = append(last, step)
	}
	require.Equal(t, instruction{"FROM", "scratch"}, last[0])
	require.Contains(t, last, instruction{"USER", "65532:65532"})
	require.Contains(t, last, instruction{"ENTRYPOINT", `["/program"]`})
	copied := 0
	for _, step := range last {
		require.NotEqual(t, "RUN", step.word)
		if step.word == "COPY" {
			copied++
		}
	}
	require.Equal(t, 2, copied, "the program and the certificates that it trusts, nothing else")
}
