// Package queue holds requests that wait because every worker rank they could go to is busy, and says which goes next.
//
// A request belongs to a class. Within a class the order is, first to last: higher strict priority, earlier deadline, higher
// score, older. The score is the class's policy:
//
//	fcfs  max(priority jump, 0) - arrival in seconds
//	lcfs  max(priority jump, 0) + arrival in seconds
//	wspt  (1 + max(priority jump, 0)) / max(uncached prompt tokens, 1)
//
// and is fixed when the request is pushed. Between classes, deficit round robin: each round gives a class its quantum of
// prompt tokens to spend; a class goes on while its credit lasts, and loses what is left when it has nothing waiting.
//
// Within a class, requests wait in lanes. Requests of one lane can go to the same ranks, so they fit together or not at
// all: what waits behind a head that does not fit is not asked, and one lane never holds up another. Who puts requests with
// different constraints into one lane accepts that they wait for each other, until one that does not fit heads it (Queue.Lane).
//
// When to wait (Queue.MustWait): the class has a threshold, and either others of the class wait already or every eligible
// rank is busy. A rank is busy (Class.Busy) when the prompt tokens of its active requests exceed a fraction of what it may
// batch, or a fixed number; the tokens of the request itself do not count. The owner calls Wake after whatever may have made
// room (a request freed, its prefill complete, a worker joined or gone) and then takes requests with Next until it gives none:
//
//	queue.Wake()
//	for it := queue.Expired(now); it != nil; it = queue.Expired(now) { /* tell its waiter that its deadline passed */ }
//	for it := queue.Next(fits); it != nil; it = queue.Next(fits) { /* choose a rank, book, tell its waiter */ }
//
// A Queue is not safe for concurrent use: the router's mutex guards it, so that what fits still fits when it is booked. It
// owns no goroutine and reads no clock: now is nanoseconds on any clock of the caller. Pushing, taking and removing cost
// O(log n) of the requests that wait, plus O(classes) for taking. A lane's head is asked at most
// twice after each Wake, so waking 4,096 blocked lanes costs microseconds; lanes of one place need not be woken for another (Bound).
//
// The numbers are those of Dynamo 1.6.1, and so is the policy file (ParseConfig). Package queue/model is the literal
// truth that fuzzing compares with.
package queue
