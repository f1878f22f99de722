package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
)

// screen keeps what is written, and lets a test wait for words.
type screen struct {
	mu    sync.Mutex
	text  string
	wrote chan struct{}
}

func newScreen() *screen { return &screen{wrote: make(chan struct{}, 1)} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text += string(p)
	select {
	case s.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (s *screen) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

func (s *screen) until(t *testing.T, words string) {
	t.Helper()
	for !strings.Contains(s.read(), words) {
		select {
		case <-s.wrote:
		case <-t.Context().Done():
			t.Fatalf("no %q in:\n%s", words, s.read())
		}
	}
}

// Who watches pods sees them go.
func TestWatchPrintsPodsThatEnd(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16)),
		makePod(t, "ml/goes", "gpu-a", 5, uuid("gpu-a", 0)), makePod(t, "ml/stays", "gpu-a", 5, uuid("gpu-a", 0)))
	out := newScreen()
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out})
	o.client = client
	cmd := newCommand(o)
	cmd.SetArgs([]string{"pods", "-w"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	out.until(t, "stays")
	if err := client.CoreV1().Pods("ml").Delete(ctx, "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "Ended")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := out.read(); strings.Count(got, "stays") != 1 || strings.Count(got, "goes") != 2 {
		t.Errorf("the pod that ends is printed once more, and no other:\n%s", got)
	}
}

func TestWatchPrintsRowsThatChange(t *testing.T) {
	client := fake.NewClientset(makeNode(t, "gpu-a", inventory("gpu-a", 16, 80)))
	out := newScreen()
	o := newOptions(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: out})
	o.client = client
	cmd := newCommand(o)
	cmd.SetArgs([]string{"gpus", "-w"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	out.until(t, "0/80")
	if _, err := client.CoreV1().Pods("ml").Create(ctx, makePod(t, "ml/new", "gpu-a", 5, uuid("gpu-a", 1)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	out.until(t, "5/80")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.read(), "0/16"); got != 1 {
		t.Errorf("the GPU that has not changed was printed %d times:\n%s", got, out.read())
	}
}
