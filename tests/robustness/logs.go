package robustness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// findPanics looks for crashes and data races in the logs of the roles.
func findPanics(dir string) ([]string, error) {
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range logs {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, mark := range []string{"panic:", "fatal error:", "WARNING: DATA RACE", `"msg":"panic`} {
			if at := bytes.Index(content, []byte(mark)); at >= 0 {
				excerpt, _, _ := strings.Cut(string(content[at:]), "\n")
				found = append(found, fmt.Sprintf("%s: %.300s", filepath.Base(file), excerpt))
			}
		}
	}
	return found, nil
}

// keepLogs copies the logs of roles and servers to a folder that stays.
func keepLogs(dir, to string) error {
	if to == "" {
		return nil
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, pattern := range []string{"*.log", "*/server.log"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		errs = append(errs, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			name, err := filepath.Rel(dir, file)
			errs = append(errs, err, os.WriteFile(filepath.Join(to, strings.ReplaceAll(name, string(filepath.Separator), "-")), content, 0o644))
		}
	}
	return errors.Join(errs...)
}
