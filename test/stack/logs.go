package stack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpumem/gpumem/test/cluster"
)

// kept is the folder, in the cluster's, with what KeepContainerLogs has copied.
const kept = "kept-logs"

// SaveLogs copies the logs of the cluster's processes and of gpumem's
// containers, which go with the cluster, to a new folder, and says in the log
// where it is. Namespaces are those of which pods and events are kept too.
func (s *Stack) SaveLogs(ctx context.Context, c *cluster.Cluster, namespaces ...string) {
	dir, err := os.MkdirTemp("", "gpumem-"+c.Name()+"-logs-")
	if err != nil {
		fmt.Fprintln(s.log, "keep the logs:", err)
		return
	}
	errs := []error{copyFile(c.AuditLog(), filepath.Join(dir, filepath.Base(c.AuditLog())))}
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.Dir(), kept))); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, name := range c.Processes() {
		errs = append(errs, copyFile(c.LogFile(name), filepath.Join(dir, name+".log")))
	}
	for _, node := range c.Nodes() {
		errs = append(errs, copyContainerLogs(c, node, "*", dir))
	}
	for _, namespace := range namespaces {
		for _, kind := range []string{"pods", "events"} {
			text, err := s.Kubectl(ctx, c, "get", kind, "--namespace", namespace, "-o", "yaml", "--show-managed-fields")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, namespace+"-"+kind+".yaml"), []byte(text), 0o600)
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(s.log, "keep the logs:", err)
	}
	fmt.Fprintln(s.log, "the logs are in", dir)
}

// KeepContainerLogs copies the logs of gpumem's containers of a name on a node
// for SaveLogs: the kubelet keeps those of the last start only.
func KeepContainerLogs(c *cluster.Cluster, node, container string) error {
	dir := filepath.Join(c.Dir(), kept)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return copyContainerLogs(c, node, container, dir)
}

// ContainerLog returns the lines that gpumem's containers of a name on a node have
// written, as far as the kubelet keeps them.
func ContainerLog(c *cluster.Cluster, node, container string) ([]string, error) {
	files, err := containerLogs(c, node, container)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			// TIME STREAM TAG LINE
			if parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4); len(parts) == 4 {
				out = append(out, parts[3])
			}
		}
	}
	return out, nil
}

func containerLogs(c *cluster.Cluster, node, container string) ([]string, error) {
	return filepath.Glob(filepath.Join(c.NodeDir(node), "log", "pods", Namespace+"_*", container, "*.log"))
}

// copyContainerLogs copies the logs of a node's containers that match a
// pattern, to NODE_POD_CONTAINER_START.log each.
func copyContainerLogs(c *cluster.Cluster, node, container, dir string) error {
	files, err := containerLogs(c, node, container)
	if err != nil {
		return err
	}
	for _, file := range files {
		// …/NAMESPACE_POD_UID/CONTAINER/START.log
		container := filepath.Dir(file)
		pod := strings.Split(filepath.Base(filepath.Dir(container)), "_")[1]
		name := strings.Join([]string{node, pod, filepath.Base(container), filepath.Base(file)}, "_")
		if err := copyFile(file, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile skips a file that does not exist: the kubelet may just have removed it.
func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o600)
}
