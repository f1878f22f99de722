package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
	"github.com/gpumem/gpumem/test/cluster/internal/linux"
)

// state is what must be known to go on with a cluster, or to take it away, in
// another process. It is written to disk at each change.
type state struct {
	Name       string              `json:"name"`
	Port       int                 `json:"port"`
	CacheDir   string              `json:"cacheDir"`
	Components component.Dirs      `json:"components"`
	Fabric     linux.Process       `json:"fabric"`    // anchor of the control plane's network
	Forwarder  linux.Process       `json:"forwarder"` // zero when the starting process forwards
	Owner      linux.Process       `json:"owner"`     // process without which the cluster is of no use, or zero
	NextIndex  int                 `json:"nextIndex"` // of the next node
	Nodes      []nodeState         `json:"nodes"`
	Processes  map[string]*process `json:"processes"`
}

// nodeState is a node as it was made.
type nodeState struct {
	Node
	Index  int           `json:"index"`
	Anchor linux.Process `json:"anchor"`
}

// address is the node's own on the fabric.
func (n nodeState) address() netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 1, byte(n.Index)}) }

// pods is the network of the node's pods.
func (n nodeState) pods() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(n.Index), 0}), 24)
}

func (s *state) node(name string) (nodeState, error) {
	i := slices.IndexFunc(s.Nodes, func(n nodeState) bool { return n.Name == name })
	if i < 0 {
		return nodeState{}, fmt.Errorf("the cluster %s has no node %q", s.Name, name)
	}
	return s.Nodes[i], nil
}

// anchor returns the process that holds the namespaces called where.
func (s *state) anchor(where string) (linux.Process, error) {
	if where == fabric {
		return s.Fabric, nil
	}
	n, err := s.node(where)
	return n.Anchor, err
}

// known returns all processes that the state names.
func (s *state) known() []linux.Process {
	found := []linux.Process{s.Fabric}
	for _, n := range s.Nodes {
		found = append(found, n.Anchor)
	}
	for _, p := range slices.Collect(maps.Values(s.Processes)) {
		found = append(found, p.Process)
	}
	return found
}

// cgroup is the control group of all the cluster's containers.
func (s *state) cgroup() string { return "/gpumem-" + s.Name }

func stateFile(dir string) string { return filepath.Join(dir, "state.json") }

func readState(dir string) (*state, error) {
	content, err := os.ReadFile(stateFile(dir))
	if err != nil {
		return nil, err
	}
	s := new(state)
	if err := json.Unmarshal(content, s); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile(dir), err)
	}
	return s, nil
}

func (s *state) write(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFileAtomic(stateFile(dir), content)
}

// writeFileAtomic replaces a file at once, so that who reads it sees the old
// content or the new one.
func writeFileAtomic(name string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(content); err != nil {
		f.Close()
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
