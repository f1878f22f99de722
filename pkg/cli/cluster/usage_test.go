package cluster

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// slow sends the header of a response and then blocks.
type slow struct{}

func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.WriteHeader(http.StatusOK)
	answer := w.Result()
	answer.Body = &unending{done: r.Context().Done(), err: r.Context().Err}
	return answer, nil
}

type unending struct {
	done <-chan struct{}
	err  func() error
}

func (u *unending) Read([]byte) (int, error) { <-u.done; return 0, u.err() }
func (u *unending) Close() error             { return nil }

// A plugin that stops sending must not block the command: the API server's proxy has no time limit.
func TestAPluginThatSendsNoMoreHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: slow{}})
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-device-plugin-x"}}
		began := time.Now()
		_, err = (&Reader{Client: client, System: "gpumem-system"}).readMetrics(t.Context(), pod)
		if err == nil || !strings.Contains(err.Error(), "pod gpumem-system/gpumem-device-plugin-x: no answer within 5s") || time.Since(began) > 2*metricsTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
