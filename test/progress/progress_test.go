package progress

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestStepsAreNumberedAndHaveTheTime(t *testing.T) {
	var out bytes.Buffer
	steps := Steps{Out: NewWriter(&out, time.Now().Add(-70*time.Second)), Total: 3}
	steps.Next("Build %s", "it")
	steps.Next("Run it")
	want := regexp.MustCompile(`^\[  7\ds\] ==> step 1 of 3: Build it\n\[  7\ds\] ==> step 2 of 3: Run it\n$`)
	if !want.MatchString(out.String()) {
		t.Errorf("got %q", out.String())
	}
}

func TestBuild(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.test\n\ngo 1.26\n", "good/main.go": "package main\n\nfunc main() {}\n", "bad/main.go": "package main\n\nfunc main() { undefined() }\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	b := Build{Name: "good", Dir: dir, Packages: []string{"./good"}, Output: filepath.Join(dir, "program")}
	if err := b.Run(t.Context(), &log); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.Output); err != nil {
		t.Error(err)
	}
	b.Packages = []string{"./bad"}
	if err := b.Run(t.Context(), &log); err == nil || !strings.Contains(err.Error(), "undefined: undefined") {
		t.Errorf("a build that fails returns %v", err)
	}
	b.Packages = []string{"./none"}
	if err := b.Run(t.Context(), &log); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a package that does not exist: %v", err)
	}
}

// The status counts what the command has printed so far.
func TestWatchCounts(t *testing.T) {
	l := &lines{}
	for _, text := range []string{"go: downloading a v1\npkg/a\n", "go: downloading b v1\n", "# pkg/b\nb.go:1: wrong\n"} {
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.count("go: downloading "); got != 2 {
		t.Errorf("%d downloads, want 2", got)
	}
	if got := l.failure(); got != "# pkg/b\nb.go:1: wrong" {
		t.Errorf("failure %q", got)
	}
}

// Heartbeat writes while nobody else does, and not more often than that.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := NewWriter(&out, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), 2*interval+2*time.Second)
		defer cancel()
		w.Heartbeat(ctx)
		if got := strings.Count(out.String(), "still running\n"); got != 2 {
			t.Errorf("%d lines in %s, want 2:\n%s", got, 2*interval, out.String())
		}
	})
}
