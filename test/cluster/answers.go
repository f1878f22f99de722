package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// Answers are those of a kubelet's PodResources, on their way to who asks: they can be kept back.
type Answers struct {
	listener net.Listener
	kubelet  string       // its socket
	gate     sync.RWMutex // locked while they are kept back
	running  sync.WaitGroup

	mu   sync.Mutex
	open []net.Conn
}

// RelayAnswers serves at a socket what is served at that of a kubelet, until Close.
func RelayAnswers(socket, kubelet string) (*Answers, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("relay the answers of %s: %w", kubelet, err)
	}
	a := &Answers{listener: listener, kubelet: kubelet}
	a.running.Go(a.serve)
	return a, nil
}

// RelayedKubeletDir is a directory of each node like the kubelet's own. Its PodResources are
// served while RelayAnswersOf runs.
const RelayedKubeletDir = "/var/lib/kubelet-relayed"

// RelayAnswersOf serves the PodResources of a node in RelayedKubeletDir too.
func (c *Cluster) RelayAnswersOf(node string) (*Answers, error) {
	lib := filepath.Join(c.NodeDir(node), "lib")
	relayed := filepath.Join(lib, filepath.Base(RelayedKubeletDir))
	if err := os.MkdirAll(filepath.Join(relayed, "pod-resources"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink("../kubelet/device-plugins", filepath.Join(relayed, "device-plugins")); err != nil {
		return nil, err
	}
	return RelayAnswers(filepath.Join(relayed, "pod-resources", "kubelet.sock"), filepath.Join(lib, "kubelet", "pod-resources", "kubelet.sock"))
}

// KeepBack lets no answer through until LetThrough.
func (a *Answers) KeepBack() { a.gate.Lock() }

// LetThrough ends KeepBack.
func (a *Answers) LetThrough() { a.gate.Unlock() }

// Close ends the connections and takes the socket away.
func (a *Answers) Close() {
	a.listener.Close()
	a.mu.Lock()
	for _, conn := range a.open {
		conn.Close()
	}
	a.mu.Unlock()
	a.running.Wait()
}

func (a *Answers) serve() {
	for {
		client, err := a.listener.Accept()
		if err != nil {
			return // it is closed
		}
		kubelet, err := net.Dial("unix", a.kubelet)
		if err != nil { // it is down: who asks comes again
			client.Close()
			continue
		}
		a.mu.Lock()
		a.open = append(a.open, client, kubelet)
		a.mu.Unlock()
		a.running.Go(func() { defer kubelet.Close(); _, _ = io.Copy(kubelet, client) })
		a.running.Go(func() { defer client.Close(); a.pass(client, kubelet) })
	}
}

func (a *Answers) pass(to io.Writer, from io.Reader) {
	chunk := make([]byte, 64<<10)
	for {
		n, err := from.Read(chunk)
		if err != nil {
			return
		}
		a.gate.RLock()
		_, err = to.Write(chunk[:n])
		a.gate.RUnlock()
		if err != nil {
			return
		}
	}
}
