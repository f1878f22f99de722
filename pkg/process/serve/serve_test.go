package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A deadlocked process must not report that it is alive.
func TestHealthzWaitsForTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		probes := Probes("v1", nil, func() { <-free })
		answer := httptest.NewRecorder()
		answered := false
		go func() {
			probes.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			answered = true
		}()
		synctest.Wait()
		if answered {
			t.Fatalf("answered %d while the lock was opened", answer.Code)
		}
		close(free)
		synctest.Wait()
		if !answered || answer.Code != http.StatusOK {
			t.Errorf("answered %t, %d once it was free", answered, answer.Code)
		}
	})
}

// serving runs a server with a limit of connections until the test ends.
func serving(t *testing.T, handler http.Handler, most int) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, listener, handler, most) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// dial opens a connection and sends data.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// answered reads one response from a connection.
func answered(t *testing.T, conn net.Conn) int {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

const askHealth = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

// A client that opens too many connections loses the older ones, and others are served. The server closes the
// longest idle connection first, and busy ones only if none is idle.
func TestConnectionsAreFew(t *testing.T) {
	const most = 4
	for name, text := range map[string]string{
		"silent": "", "idle": askHealth, "slow": "GET /healthz HTTP/1.1\r\nX-Slow: ",
	} {
		t.Run(name, func(t *testing.T) {
			address := serving(t, Probes("v1", nil, func() {}), most)
			var opened []net.Conn
			for range 3 * most {
				conn := dial(t, address, text)
				if text == askHealth {
					answered(t, conn)
				}
				opened = append(opened, conn)
			}
			if got := answered(t, dial(t, address, askHealth)); got != http.StatusOK {
				t.Errorf("one more is answered %d", got)
			}
			if err := opened[0].SetReadDeadline(time.Now().Add(headerTimeout / 2)); err != nil {
				t.Fatal(err)
			}
			if _, err := opened[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the first connection: %v, want it closed", err)
			}
		})
	}
	t.Run("served", func(t *testing.T) {
		begun, end := make(chan struct{}), make(chan struct{})
		address := serving(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(begun)
			<-end
		}), most)
		busy := dial(t, address, askHealth)
		<-begun
		for range 3 * most {
			dial(t, address, "")
		}
		close(end)
		if got := answered(t, busy); got != http.StatusOK {
			t.Errorf("a request under way is answered %d", got)
		}
	})
}

func TestRequestsAreSmall(t *testing.T) {
	address := serving(t, Probes("v1", nil, func() {}), 4)
	for name, tc := range map[string]struct {
		text string
		want int
	}{
		"usual":         {"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: " + strings.Repeat("a", 8<<10) + "\r\n\r\n", http.StatusOK},
		"large headers": {"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: " + strings.Repeat("a", 64<<10) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			if got := answered(t, dial(t, address, tc.text)); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
}
