package mps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/atomicfile"
)

// server is the one server of a daemon of version 3, where each grant has a namespace.
const server = "gpumem"

// Pipe returns the pipe directory of clients of a daemon of version 2.
func Pipe(dir string) string { return filepath.Join(dir, "pipe") }

// NamespacePipe returns the pipe directory of the clients of a namespace.
func NamespacePipe(dir, namespace string) string {
	return filepath.Join(dir, "pipe", server, namespace)
}

// Namespace is what each client of one may have of each GPU.
type Namespace struct {
	LimitMiB int64 `json:"limitMiB"`
	Percent  int   `json:"percent,omitempty"` // of a GPU's threads; 0: all, or what the client's environment says
}

// percent is of a GPU's threads. It is always said: a namespace keeps what it was given before.
func (n Namespace) percent() int { return cmp.Or(n.Percent, 100) }

// spaces are the namespaces of a daemon. They are written down: the next daemon begins with them,
// for containers may have them mounted that have not used the GPU yet.
type spaces struct {
	dir string // Config.Dir
	log *zap.Logger

	mu    sync.Mutex // guards named, and is locked while the daemon learns of one
	named namespaces
}

// namespaces are known by name.
type namespaces map[string]entry

type entry struct {
	Namespace
	Since time.Time `json:"since"` // when it was last asked for
}

const namespacesFile = "namespaces.json"

// grace is how long a namespace is kept that no container has mounted: one is about to start.
const grace = 10 * time.Minute

// validName is what the daemon takes for a name (NVIDIA, "MPS v3 Interface").
var validName = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

// config returns the configuration of a daemon (NVIDIA, "MPS v3 Configuration File"). Who connects
// to the server and not to a namespace gets almost nothing.
func (n namespaces) config() string {
	var out strings.Builder
	fmt.Fprintf(&out, "schema_version = \"1.0\"\n\n[features.memacct]\nenabled = true\naudit_log = true\n\n[servers.%s]\npinned_memory_limit = \"1M\"\nactive_thread_percentage = \"1\"\n", server)
	for _, name := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(&out, "\n[servers.%s.namespaces.%s]\npinned_memory_limit = \"%dM\"\nactive_thread_percentage = \"%d\"\n", server, name, n[name].LimitMiB, n[name].percent())
	}
	return out.String()
}

// Serve makes a namespace what it is to be, or makes it.
func (s *Supervisor) Serve(ctx context.Context, name string, want Namespace) error {
	switch {
	case !validName.MatchString(name):
		return fmt.Errorf("namespace %q: want lowercase letters, digits and underscores", name)
	case want.LimitMiB < 1 || want.Percent < 0 || want.Percent > 100:
		return fmt.Errorf("namespace %s: a limit of %d MiB and %d per cent", name, want.LimitMiB, want.Percent)
	case s.cfg.Protocol < 3:
		return errors.New("a daemon of version 2 has no namespaces")
	}
	if st := s.Status(); !st.Healthy {
		return fmt.Errorf("the MPS daemon: %s", st.Reason)
	}
	return s.spaces.serve(ctx, s.control(), name, want)
}

// serve has the daemon make a namespace what it is to be, and writes it down.
func (s *spaces) serve(ctx context.Context, daemon control, name string, want Namespace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := daemon.serve(ctx, name, want); err != nil {
		return err
	}
	s.named[name] = entry{want, time.Now()}
	return s.write()
}

// serve makes a namespace, sets its limits, and reads the one of memory back.
func (c control) serve(ctx context.Context, name string, want Namespace) error {
	if err := c.makeNamespace(ctx, name); err != nil {
		return err
	}
	if _, err := c.command(ctx, "namespace", "set", name, "--server="+server,
		fmt.Sprintf("--pinned-memory-limit=%dM", want.LimitMiB), fmt.Sprintf("--active-thread-percentage=%d", want.percent())); err != nil {
		return err
	}
	reply, err := c.command(ctx, "namespace", "get", name, server, "pinned-memory-limit")
	if err != nil {
		return err
	}
	if has, ok := amountMiB(reply); !ok || has != want.LimitMiB {
		return fmt.Errorf("namespace %s: a limit of %d MiB was set and reads back as %q", name, want.LimitMiB, reply)
	}
	return nil
}

// makeNamespace makes one, unless it is there.
func (c control) makeNamespace(ctx context.Context, name string) error {
	there, err := c.command(ctx, "namespace", "list", "--server="+server, "--format=csv,noheader")
	if err != nil {
		return err
	}
	for line := range strings.Lines(there) {
		if first, _, _ := strings.Cut(line, ","); first == name {
			return nil
		}
	}
	_, err = c.command(ctx, "namespace", "create", name, "--server="+server)
	return err
}

// amountMiB reads an amount as the daemon writes it: 4G, 512M, 1024K.
func amountMiB(s string) (mib int64, ok bool) {
	units := map[string]int64{"G": 1 << 10, "M": 1}
	for unit, factor := range units {
		if digits, is := strings.CutSuffix(s, unit); is {
			n, err := strconv.ParseInt(digits, 10, 64)
			return n * factor, err == nil && n >= 0
		}
	}
	digits, is := strings.CutSuffix(s, "K")
	n, err := strconv.ParseInt(digits, 10, 64)
	return n / 1024, is && err == nil && n%1024 == 0
}

// sweep removes those that no container has mounted any more.
func (s *spaces) sweep(ctx context.Context, daemon control) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	mounted, err := mountPoints("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for name, n := range s.named {
		if mounted[NamespacePipe(s.dir, name)] || time.Since(n.Since) < grace {
			continue
		}
		// Without --force the daemon keeps one that has clients.
		if _, err := daemon.command(ctx, "namespace", "delete", name, "--server="+server); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(s.named, name)
		s.log.Info("namespace of a container that is gone is removed", zap.String("namespace", name))
	}
	return errors.Join(append(errs, s.write())...)
}

// mountPoints returns where any process has anything mounted, by its mountinfo (proc(5)).
func mountPoints(proc string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "mountinfo"))
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 4 {
				out[f[4]] = true
			}
		}
	}
	return out, nil
}

func (s *spaces) file() string { return filepath.Join(s.dir, namespacesFile) }

// read reads what the supervisor before has written.
func (s *spaces) read() error {
	data, err := os.ReadFile(s.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &s.named); err != nil {
		return fmt.Errorf("%s: %w", s.file(), err)
	}
	if s.named == nil { // it says null
		s.named = make(namespaces)
	}
	return nil
}

// write assumes that mu is locked.
func (s *spaces) write() error { return atomicfile.WriteJSON(s.file(), s.named, 0o644) }

// configure writes the configuration that the next daemon begins with.
func (s *spaces) configure(file string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return os.WriteFile(file, []byte(s.named.config()), 0o644)
}

// serveNamespace answers PUT /namespaces/NAME.
func (s *Supervisor) serveNamespace(w http.ResponseWriter, r *http.Request) {
	var want Namespace
	err := json.NewDecoder(io.LimitReader(r.Body, 1<<10)).Decode(&want)
	if err == nil {
		err = s.Serve(r.Context(), r.PathValue("name"), want)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
