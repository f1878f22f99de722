package enforcement

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// hookName is the hook of NVIDIA's container toolkit (1.20.1 and newer) that
// takes limits of GPU memory from a container's environment.
const hookName = "apply-cuda-memory-limits"

// Toolkit is NVIDIA's container toolkit on a host.
type Toolkit struct {
	roots []string // below which the host's files are

	mu     sync.Mutex // guards the rest
	seen   string     // the files that were read, with their sizes and times
	answer error
}

// NewToolkit returns the toolkit of the host whose files are below one of the
// roots.
func NewToolkit(roots ...string) *Toolkit { return &Toolkit{roots: roots} }

// Where the toolkit and the specifications that it writes are, on a host.
var (
	cdiFiles = [...]string{"etc/cdi/*", "var/run/cdi/*", "run/cdi/*"}
	programs = [...]string{
		"usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk",
		"usr/local/nvidia/toolkit/nvidia-cdi-hook", "usr/local/nvidia/toolkit/nvidia-ctk",
	}
)

// Hook says why the toolkit has no hook for limits; nil when it has. Files are
// read again when they are others.
func (t *Toolkit) Hook() error {
	files, seen := t.files()
	t.mu.Lock()
	defer t.mu.Unlock()
	if seen != t.seen || seen == "" {
		t.seen, t.answer = seen, hookIn(files)
	}
	return t.answer
}

// files returns what may name the hook, and what tells those from others.
func (t *Toolkit) files() (files []string, seen string) {
	for _, root := range t.roots {
		for _, pattern := range slices.Concat(cdiFiles[:], programs[:]) {
			found, err := filepath.Glob(filepath.Join(root, pattern))
			if err != nil {
				continue // a root with brackets in its name: nothing is found below it
			}
			files = append(files, found...)
		}
	}
	files = slices.DeleteFunc(files, func(path string) bool {
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			return true
		}
		seen += fmt.Sprintln(path, info.Size(), info.ModTime().UnixNano())
		return false
	})
	return files, seen
}

func hookIn(files []string) error {
	if slices.ContainsFunc(files, func(path string) bool { return contains(path, hookName) }) {
		return nil
	}
	if len(files) == 0 {
		return errors.New("NVIDIA's container toolkit was not found on the node")
	}
	return fmt.Errorf("NVIDIA's container toolkit has no hook %s: 1.20.1 has", hookName)
}

// contains reports whether a file has a word in it. One that cannot be read has
// not.
func contains(path, word string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var tail []byte
	block := make([]byte, 1<<20)
	for {
		n, err := f.Read(block)
		window := slices.Concat(tail, block[:n])
		if bytes.Contains(window, []byte(word)) {
			return true
		}
		tail = window[max(0, len(window)-len(word)):]
		if err != nil || n == 0 && !errors.Is(err, io.EOF) {
			return false
		}
	}
}
