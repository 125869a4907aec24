// Streams, events, arenas, scratch, bf16 and Philox: the foundation of the ops.
#include <atomic>
#include <bit>
#include <cstdio>
#include <fstream>
#include <future>
#include <new>
#include <sys/resource.h>
#include <thread>

#include "base/host_memory.h"
#include "kernels/philox.h"
#include "tests/support/tensors.h"

// Sanitizers' allocators, too, must return null for a request beyond available memory, as the system's does.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace trivet::test {
namespace {

// A gate that holds back work on a stream, so that a test knows what has not run yet.
class Gate {
 public:
  void open() { promise_.set_value(); }
  auto waiter() {
    return [future = future_] { future.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

class StreamTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device = create_cpu_device();
  std::unique_ptr<Stream> compute = device->create_compute_stream();
  std::unique_ptr<Stream> side = device->create_side_stream(StreamPriority::normal);
  std::unique_ptr<Stream> other = device->create_side_stream(StreamPriority::high);
  std::unique_ptr<Event> event = device->create_event();
};

TEST_F(StreamTest, TheComputeStreamRunsAtOnceOnTheCaller) {
  std::thread::id ran_on;
  compute->run({"work"}, [&] { ran_on = std::this_thread::get_id(); });
  EXPECT_TRUE(compute->is_inline());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST_F(StreamTest, ASideStreamRunsInOrderOnItsOwnThread) {
  std::vector<int> order;
  std::thread::id ran_on;
  for (int i = 0; i < 100; ++i) side->run({"work"}, [&, i] { order.push_back(i); });
  side->run({"work"}, [&] { ran_on = std::this_thread::get_id(); });
  side->synchronize();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST_F(StreamTest, AnEventOrdersTwoStreams) {
  Gate gate;
  int value = 0, seen = -1;
  side->run({"late"}, gate.waiter());
  side->run({"write"}, [&] { value = 42; });
  side->record(*event);
  other->wait(*event);
  other->run({"read"}, [&] { seen = value; });
  EXPECT_FALSE(event->done());
  gate.open();
  other->synchronize();
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(event->done());
}

TEST_F(StreamTest, TheComputeStreamWaitsForAnEvent) {
  int value = 0;
  side->run({"write"}, [&] { value = 42; });
  side->record(*event);
  compute->wait(*event);
  EXPECT_EQ(value, 42);
}

TEST_F(StreamTest, WaitingMeansTheLastRecordAtTheTimeOfTheWait) {
  Gate gate;
  bool ran = false;
  side->record(*event);
  other->wait(*event);  // waits for the first record, whatever is recorded later
  other->run({"work"}, [&] { ran = true; });
  other->synchronize();
  EXPECT_TRUE(ran);
  side->run({"late"}, gate.waiter());
  side->record(*event);
  EXPECT_FALSE(event->done());
  gate.open();
  event->synchronize();
  EXPECT_TRUE(event->done());
}

TEST_F(StreamTest, AnEventNeverRecordedIsComplete) {
  EXPECT_TRUE(event->done());
  event->synchronize();
  side->wait(*event);
  side->synchronize();
}

TEST_F(StreamTest, WorkThatThrowsPoisonsItsStream) {
  Gate gate;
  std::atomic<bool> ran = false;
  side->run({"late"}, gate.waiter());
  side->run({"bad"}, [] { throw DataError("broken shard"); });
  side->run({"behind"}, [&] { ran = true; });
  side->record(*event);
  other->wait(*event);
  other->run({"behind the event"}, [&] { ran = true; });
  gate.open();

  EXPECT_TRUE(throws_naming([&] { side->synchronize(); }, {"broken shard"}));
  EXPECT_TRUE(throws_naming([&] { side->run({"next"}, [&] { ran = true; }); }, {"broken shard"}));
  EXPECT_TRUE(throws_naming([&] { event->synchronize(); }, {"broken shard"}));
  EXPECT_TRUE(throws_naming([&] { other->synchronize(); }, {"broken shard"}));
  EXPECT_TRUE(throws_naming([&] { compute->wait(*event); }, {"broken shard"}));
  EXPECT_FALSE(ran);
}

TEST_F(StreamTest, TheTypeOfAnErrorCrossesStreams) {
  side->run({"bad"}, [] { throw DataError("broken shard"); });
  EXPECT_THROW(side->synchronize(), DataError);
  EXPECT_THROW(compute->run({"bad"}, [] { throw IoError("disk full"); }), IoError);
}

TEST_F(StreamTest, WorkLeavesSpansOnItsRow) {
  Trace trace;
  TraceRow* const row = trace.add_row("side");
  side->set_trace_row(row);
  side->label() = {.microbatch = 3};
  side->run({"first", comm_of("data"), 64}, [] {});
  side->label() = {};  // queued work keeps its own label
  side->run({"second", Category::compute}, [] {});
  side->synchronize();
  std::vector<Span> spans;
  row->take(spans);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_STREQ(spans[0].info.name, "first");
  EXPECT_EQ(spans[0].info.category, comm_of("data"));
  EXPECT_EQ(spans[0].info.bytes, 64);
  EXPECT_EQ(spans[0].info.label.microbatch, 3);
  EXPECT_EQ(spans[1].info.label.microbatch, -1);
  EXPECT_LE(spans[0].start_ns, spans[0].end_ns);
  EXPECT_LE(spans[0].end_ns, spans[1].start_ns);
}

TEST(Trace, HoldsAsManySpansAsThereIsRoomFor) {
  Trace trace;
  TraceRow *const row = trace.add_row("compute"), *const other = trace.add_row("side");
  trace.set_room(3);
  std::vector<Span> spans;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 4; ++i) row->add({.info = {"op"}, .start_ns = i});
    other->add({});
    row->take(spans);
    EXPECT_EQ(spans.size(), 3u);
    EXPECT_EQ(spans.back().start_ns, 2);  // the first spans are kept
    other->take(spans);
    EXPECT_EQ(spans.size(), 0u);
    EXPECT_EQ(trace.take_lost(), 2);
  }
  for (int i = 0; i < 3; ++i) other->add({});
  other->take(spans);
  EXPECT_EQ(spans.size(), 3u);
  EXPECT_EQ(trace.take_lost(), 0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A span ends in a destructor, which must not throw.
TEST(Trace, ASpanIsLostWhereMemoryEnds) {
  Trace trace;
  TraceRow* const row = trace.add_row("compute");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  small.rlim_cur = pages * 4096 + (size_t{64} << 20);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  int64_t spans = 0, lost = 0;
  for (; lost == 0 && spans < 10'000'000; ++spans) {  // 1.2 GB
    { const ScopedSpan span(row, {"op"}); }
    lost = trace.take_lost();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(lost, 1);
  EXPECT_LT(spans, 1'000'000);
}
#endif

TEST_F(StreamTest, AHandOverSaysWhenTheOtherStreamsInputWasReady) {
  // given
  Trace trace;
  TraceRow *const row = trace.add_row("compute"), *const other = trace.add_row("side");
  compute->set_trace_row(row);
  side->set_trace_row(other);
  // when
  {
    const ScopedLabel label(*compute, {.microbatch = 1, .bucket = 4});
    compute->run({"before"}, [] {});
    compute->hand_over(*side);
    compute->run({"behind"}, [] {});
  }
  compute->run({"no label"}, [] {});
  side->run({"first", comm_of("data")}, [] {});
  side->run({"second", comm_of("data")}, [] {});
  side->synchronize();
  // then
  std::vector<Span> spans, calls;
  row->take(spans);
  other->take(calls);
  ASSERT_EQ(spans.size(), 4u);
  const Span& ready = spans[1];
  EXPECT_STREQ(ready.info.name, "ready");
  EXPECT_LE(spans[0].end_ns, ready.start_ns);
  EXPECT_LE(ready.end_ns, spans[2].start_ns);
  EXPECT_EQ(spans[2].info.label.hand_over, 0);
  EXPECT_EQ(spans[3].info.label.bucket, -1);
  ASSERT_EQ(calls.size(), 2u);
  for (const Span& call : calls) {
    EXPECT_EQ(call.info.label.bucket, 4);
    EXPECT_EQ(call.info.label.hand_over, ready.info.label.hand_over);
    EXPECT_LE(ready.end_ns, call.start_ns);
  }
}

TEST_F(StreamTest, CopiesToAndFromTheDevice) {
  Arena arena(*device, "data");
  const Tensor x = arena.allocate(DType::f32, {3});
  const float sent[3] = {1, 2, 3};
  float received[3] = {};
  device->copy_to_device(sent, x, *side);
  device->copy_to_host(x, received, *side);
  side->synchronize();
  EXPECT_EQ(received[2], 3);
}

TEST_F(StreamTest, TheCpuHasMemoryAndAName) {
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  EXPECT_FALSE(device->name().empty());
  EXPECT_GT(device->memory_bytes(), int64_t{1} << 26);
}

// ---- memory

TEST(Arena, CountsBytesAndAligns) {
  const auto device = create_cpu_device();
  Arena arena(*device, "weights");
  const Tensor a = arena.allocate(DType::f32, {3, 5}), b = arena.allocate(DType::bf16, {7});
  const Tensor large = arena.allocate(DType::u8, {5 << 20}), none = arena.allocate(DType::f32, {0, 4});
  EXPECT_EQ(arena.bytes(), 60 + 14 + (5 << 20));
  EXPECT_EQ(arena.name(), "weights");
  for (const Tensor& t : {a, b, large, none}) {
    EXPECT_TRUE(t);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 256, 0u);
  }
}

TEST(Arena, SaysWhatItHoldsWhenMemoryEnds) {
  const auto device = create_cpu_device();
  Arena arena(*device, "activations");
  arena.allocate(DType::u8, {1000});
  EXPECT_TRUE(throws_naming([&] { arena.allocate(DType::u8, {int64_t{1} << 60}); },
                            {"out of memory", "activations", "on top of the 1000", "1152921504606846976"}));
  EXPECT_TRUE(throws_naming([&] { arena.allocate(DType::u8, {-1}); }, {"activations", "negative", "[-1]"}));
  EXPECT_EQ(arena.bytes(), 1000);
}

// A crashing process would spend hours writing arenas into its core file.
TEST(Arena, IsLeftOutOfCoreFiles) {
  const auto flags_at = [](const void* data) {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0, end = 0;
      if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
        here = begin <= reinterpret_cast<uintptr_t>(data) && reinterpret_cast<uintptr_t>(data) < end;
      else if (here && line.starts_with("VmFlags:")) return line + " ";
    }
    return std::string();
  };
  if (flags_at(&flags_at).empty()) GTEST_SKIP() << "this kernel does not tell";
  const auto device = create_cpu_device();
  Arena arena(*device, "weights");
  const Tensor large = arena.allocate(DType::u8, {5 << 20});
  for (const int64_t at : {0, (5 << 20) - 1})
    EXPECT_NE(flags_at(large.as<uint8_t>() + at).find(" dd "), std::string::npos) << flags_at(large.data);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(HostMemory, SaysWhatItWasForAndHowMuchAndWhichLimit) {
  const auto failure = [] {
    try {
      ::operator delete(::operator new (size_t{1} << 60));
    } catch (const std::bad_alloc& error) {
      EXPECT_EQ(exit_code_of(error), 64);
      return std::string(error.what());
    }
    return std::string("it was there");
  };
  const std::string limit = memory_limit().name;
  EXPECT_TRUE(
      failure().starts_with("out of memory: cannot allocate 1152921504606846976 bytes for this command; " + limit))
      << failure();
  const MemoryPurpose outer("the index", "data/x.idx");
  {
    const MemoryPurpose inner("a part");
    EXPECT_NE(failure().find(" bytes for a part; " + limit), std::string::npos) << failure();
  }
  EXPECT_NE(failure().find(" bytes for the index data/x.idx; " + limit), std::string::npos) << failure();
  std::thread([&] { EXPECT_NE(failure().find(" bytes for this command; "), std::string::npos); }).join();
  const MemoryPurpose long_name("the content of", std::string(5000, 'x'));
  EXPECT_LT(failure().size(), 512u);
}

TEST(HostMemory, TheLimitIsTheOneThatIsMetFirst) {
  const MemoryLimit machine = memory_limit();
  EXPECT_GT(machine.left(), int64_t{1} << 20);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = static_cast<rlim_t>(machine.used) + (size_t{8} << 30);  // address space exceeds the memory used
  const auto device = create_cpu_device();
  Arena arena(*device, "weights");
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  const MemoryLimit limit = memory_limit();
  std::string refused;
  try {
    arena.allocate(DType::u8, {int64_t{9} << 30});
  } catch (const ConfigError& error) {
    refused = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  if (limit.bytes != machine.bytes) {
    EXPECT_EQ(limit.bytes, static_cast<int64_t>(small.rlim_cur));
    EXPECT_GT(limit.used, 0);
    EXPECT_LT(limit.left(), int64_t{8} << 30);
  }
  EXPECT_NE(
      refused.find("out of memory: weights need 9663676416 bytes on top of the 0 that they hold (cannot allocate"),
      std::string::npos);
  EXPECT_NE(refused.find(", of which the process uses "), std::string::npos) << refused;
}
#endif

TEST(Scratch, FramesNestAndGiveBack) {
  const auto device = create_cpu_device();
  Arena arena(*device, "scratch");
  Scratch scratch(arena, 1024);
  EXPECT_EQ(scratch.capacity(), 1024);
  void* first = nullptr;
  {
    Scratch::Frame outer(scratch);
    const Tensor a = outer.tensor(DType::f32, {3});  // 12 bytes, padded to 256
    first = a.data;
    a.as<float>()[2] = 5;
    void* inner_data = nullptr;
    {
      Scratch::Frame inner(scratch);
      const Tensor b = inner.tensor(DType::bf16, {129});  // 258 bytes, padded to 512
      inner_data = b.data;
      EXPECT_EQ(static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data), 256);
      EXPECT_EQ(inner.tensor(DType::u8, {256}).bytes(), 256);  // full to the last byte
    }
    EXPECT_EQ(outer.tensor(DType::u8, {1}).data, inner_data);
    EXPECT_EQ(a.as<float>()[2], 5);
  }
  EXPECT_EQ(Scratch::Frame(scratch).tensor(DType::u8, {1}).data, first);
  EXPECT_EQ(scratch.high_water(), 1024);
}

TEST(Scratch, SaysWhatDoesNotFit) {
  const auto device = create_cpu_device();
  Arena arena(*device, "scratch");
  Scratch scratch(arena, 1024);
  Scratch::Frame frame(scratch);
  frame.tensor(DType::u8, {300});
  EXPECT_TRUE(throws_naming(
      [&] {
        frame.tensor(DType::f32, {2, 100});
      },
      {"scratch of 1024 bytes", "[2, 100] fp32", "512 bytes in use"}));
  EXPECT_EQ(frame.tensor(DType::f32, {128}).bytes(), 512);  // a tensor that does fit is still allocated
}

TEST(TensorView, SlicesAndViews) {
  Tensors tensors;
  const Tensor x = tensors.make(DType::f32, {4, 3, 2}, [](int64_t i) { return static_cast<double>(i); });
  EXPECT_EQ(x.rows(), 12);
  EXPECT_EQ(x.cols(), 2);
  EXPECT_EQ(get(x.slice(2, 2), 0), 12);
  EXPECT_EQ(x.slice(4, 0).numel(), 0);
  EXPECT_EQ(x.view({24}).shape, Shape({24}));
  EXPECT_TRUE(throws_naming([&] { x.slice(3, 2); }, {"[3, +2)", "[4, 3, 2]"}));
  EXPECT_TRUE(throws_naming([&] { x.view({5, 5}); }, {"[4, 3, 2]", "[5, 5]"}));
}

// ---- numbers

uint16_t rounded(uint32_t bits) { return bf16(std::bit_cast<float>(bits)).bits; }

TEST(Bf16, RoundsToNearestTiesToEven) {
  EXPECT_EQ(rounded(0x3f800000), 0x3f80);  // 1
  EXPECT_EQ(rounded(0x3f807fff), 0x3f80);  // just below the tie
  EXPECT_EQ(rounded(0x3f808000), 0x3f80);  // a tie, even below
  EXPECT_EQ(rounded(0x3f808001), 0x3f81);
  EXPECT_EQ(rounded(0x3f818000), 0x3f82);  // a tie, even above
  EXPECT_EQ(rounded(0xbf818000), 0xbf82);
  EXPECT_EQ(rounded(0x3fffffff), 0x4000);  // carries into the exponent
  EXPECT_EQ(rounded(0x7f7fffff), 0x7f80);  // the largest float is nearer to infinity
  EXPECT_EQ(rounded(0x80000000), 0x8000);  // -0
  EXPECT_EQ(rounded(0x00018000), 0x0002);  // subnormal numbers too
  EXPECT_EQ(rounded(0x7f800000), 0x7f80);
  EXPECT_EQ(rounded(0xff800000), 0xff80);
}

TEST(Bf16, NotANumberStaysOne) {
  for (const uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(bits))))) << bits;
    EXPECT_EQ(rounded(bits) >> 15, bits >> 31) << "the sign of " << bits;
  }
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    bf16 x;
    x.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(x);
    EXPECT_TRUE(std::isnan(wide) || bf16(wide).bits == bits) << bits;
  }
}

// Known-answer tests from Random123, the authors' own library (kat_vectors, philox4x32, 10 rounds).
TEST(Philox, GivesTheKnownAnswers) {
  struct Answer {
    uint64_t low, high, key;
    uint32_t words[4];
  };
  const uint64_t ones = ~uint64_t{0};
  for (const Answer& answer : {Answer{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                               Answer{ones, ones, ones, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                               Answer{0x85a308d3243f6a88,
                                      0x0370734413198a2e,
                                      0x299f31d0a4093822,
                                      {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}) {
    const PhiloxWords found = philox4x32(answer.low, answer.high, answer.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(found.w[i], answer.words[i]);
  }
}

// The same for the 7 rounds that dropout uses.
TEST(Philox, GivesTheKnownAnswerOfSevenRounds) {
  const PhiloxWords found = philox4x32<7>(0, 0, 0);
  const uint32_t words[4] = {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48};
  for (int i = 0; i < 4; ++i) EXPECT_EQ(found.w[i], words[i]);
}

TEST(Philox, TheThresholdIsTheShareOfAllWords) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5f), 0x80000000u);
  EXPECT_EQ(dropout_threshold(0.25f), 0x40000000u);
}

}  // namespace
}  // namespace trivet::test
