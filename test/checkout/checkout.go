// Package checkout finds the repository that a test program runs in.
package checkout

import (
	"fmt"
	"os"
	"path/filepath"
)

// Root returns the folder that holds the chart: the working directory or a folder above it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "charts", "gpumem", "Chart.yaml")); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("neither %s nor a folder above it is a checkout of gpumem", dir)
}
