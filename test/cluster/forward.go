package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/gpumem/gpumem/test/cluster/internal/linux"
)

// The listener of a forwarder is its first file after the standard ones.
const forwarderFile = 3

// Forward serves the API server of the cluster in the folder stateDir on the
// machine's loopback. It is for a process that Start has started as
// Config.Forwarder, and returns when ctx ends.
func Forward(ctx context.Context, stateDir string) error {
	s, err := readState(stateDir)
	if err != nil {
		return err
	}
	file := os.NewFile(forwarderFile, "listener")
	listener, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("this is to be started by the cluster only: %w", err)
	}
	return forward(ctx, listener, s.Fabric.PID)
}

// forward hands connections on to the API server in the network of the process
// pid until ctx ends.
func forward(ctx context.Context, listener net.Listener, pid int) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("forward to the API server: %w", err)
		}
		connections.Go(func() { forwardConn(ctx, conn.(*net.TCPConn), pid) })
	}
}

func forwardConn(ctx context.Context, client *net.TCPConn, pid int) {
	defer client.Close()
	conn, err := linux.DialIn(ctx, pid, "tcp", apiServerAddress)
	if err != nil {
		return // the client sees that the connection ends, as it would without us
	}
	defer conn.Close()
	server := conn.(*net.TCPConn)
	defer context.AfterFunc(ctx, func() {
		client.Close()
		server.Close()
	})()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.CloseWrite()
	})
	_, _ = io.Copy(client, server)
	// The server has nothing more to say, and no HTTP server reads on then.
	client.Close()
	server.Close()
	up.Wait()
}

// startForwarder makes the API server reachable at the port, or at any.
func (c *Cluster) startForwarder(ctx context.Context, port int, command []string) error {
	listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("listen for clients of the API server: %w", err)
	}
	tcp := listener.(*net.TCPListener)
	c.state.Port = tcp.Addr().(*net.TCPAddr).Port
	if err := c.state.write(c.dir); err != nil {
		return err
	}
	if len(command) == 0 {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		c.stopForwarder = cancel
		c.forwarding.Go(func() { _ = forward(ctx, listener, c.state.Fabric.PID) })
		return nil
	}
	defer listener.Close()
	file, err := tcp.File()
	if err != nil {
		return err
	}
	defer file.Close()
	log, err := os.Create(c.LogFile("forwarder"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], c.dir)...)
	cmd.Dir = "/"
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the forwarder: %w", err)
	}
	if c.state.Forwarder, err = adopt(cmd); err != nil {
		return fmt.Errorf("start the forwarder: %w", err)
	}
	return c.state.write(c.dir)
}
