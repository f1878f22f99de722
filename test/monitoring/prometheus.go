package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Programs returns the folder that has the programs prometheus and promtool. The
// error says why this machine has none.
func Programs(ctx context.Context, cache string) (string, error) {
	if path, err := exec.LookPath("prometheus"); err == nil {
		if _, err := exec.LookPath("promtool"); err == nil {
			return filepath.Dir(path), nil
		}
	}
	root := filepath.Join(cache, "prometheus")
	bin := filepath.Join(root, "usr", "bin")
	if _, err := os.Stat(filepath.Join(bin, "promtool")); err == nil {
		return bin, nil
	}
	return bin, unpack(ctx, "prometheus", root)
}

// unpack downloads a Debian package and puts its files below a folder.
func unpack(ctx context.Context, name, root string) error {
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("no %s on this machine, and no %s to get it with", name, program)
		}
	}
	dir, err := os.MkdirTemp("", "gpumem-package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := run(ctx, dir, "apt-get", "download", "-qq", name); err != nil {
		if err := errors.Join(run(ctx, dir, "apt-get", "update", "-qq"), run(ctx, dir, "apt-get", "download", "-qq", name)); err != nil {
			return err
		}
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("download of %s left %v: %w", name, packages, err)
	}
	fresh := root + ".new" // so that a folder that is there is whole
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(filepath.Dir(root), 0o755)); err != nil {
		return err
	}
	if err := run(ctx, dir, "dpkg-deb", "-x", packages[0], fresh); err != nil {
		return err
	}
	return os.Rename(fresh, root)
}

func run(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(output))
	}
	return nil
}

// Prometheus is one that runs.
type Prometheus struct {
	address string
	cmd     *exec.Cmd
}

// Start runs Prometheus with a configuration, and its data in a folder, until
// Stop. Its log goes to log.
func Start(programs, config, data string, log io.Writer) (*Prometheus, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Prometheus{address: listener.Addr().String()}
	listener.Close()
	p.cmd = exec.Command(filepath.Join(programs, "prometheus"),
		"--config.file="+config, "--storage.tsdb.path="+data, "--web.listen-address="+p.address)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	return p, p.cmd.Start()
}

// Stop ends it.
func (p *Prometheus) Stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// Sample is one series of an answer.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now.
func (p *Prometheus) Query(ctx context.Context, expr string) ([]Sample, error) {
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Timeout: 10 * time.Second}
	reply, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	var out []Sample
	for _, r := range answer.Data.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			return nil, err
		}
		out = append(out, Sample{Labels: r.Metric, Value: value})
	}
	return out, nil
}

// Dashboard is what a test wants to know of one of Grafana's.
type Dashboard struct {
	Panels []struct {
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr         string
			LegendFormat string
		}
		FieldConfig struct{ Defaults struct{ Unit string } }
	}
}

// ReadDashboard reads one from a file, with its variables filled in: all nodes,
// and rates over the time of some scrapes.
func ReadDashboard(file, rateInterval string) (Dashboard, error) {
	var d Dashboard
	text, err := os.ReadFile(file)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %w", file, err)
	}
	for i := range d.Panels {
		for j := range d.Panels[i].Targets {
			t := &d.Panels[i].Targets[j]
			t.Expr = strings.NewReplacer("$namespace", ".*", "$node", ".*", "$__rate_interval", rateInterval).Replace(t.Expr)
		}
	}
	return d, nil
}
