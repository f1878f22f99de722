package clirun

import (
	"context"
	"strings"
	"sync"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/cli"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
)

// Screen records the output of a watch, and lets a test wait for a text.
type Screen struct {
	mu    sync.Mutex
	text  string
	wrote chan struct{}
}

func newScreen() *Screen { return &Screen{wrote: make(chan struct{}, 1)} }

// Write implements io.Writer.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

// Text returns the output so far.
func (s *Screen) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// Until waits until the output contains the text words. It fails the test if the test's context ends first.
func (s *Screen) Until(t *testing.T, words string) {
	t.Helper()
	for !strings.Contains(s.Text(), words) {
		select {
		case <-s.wrote:
		case <-t.Context().Done():
			t.Fatalf("no %q in:\n%s", words, s.Text())
		}
	}
}

// Watch runs a command in the background until the caller calls stop. The Screen out records its output.
func Watch(t *testing.T, client kubernetes.Interface, args ...string) (out *Screen, stop func()) {
	t.Helper()
	out = newScreen()
	f := cmdutil.NewFactory(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out}, "dev")
	f.Client = client
	cmd := cli.NewCommand(f)
	cmd.SetArgs(args)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	return out, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}
