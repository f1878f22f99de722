package serve

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
)

// A process that hangs must not say that it lives.
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
			t.Fatalf("answered %d while the lock was held", answer.Code)
		}
		close(free)
		synctest.Wait()
		if !answered || answer.Code != http.StatusOK {
			t.Errorf("answered %t, %d once it was free", answered, answer.Code)
		}
	})
}
