#include "router/fleet/roster.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace flotilla {
namespace {

ModelHandle Model(const std::string& name, const std::string& tokenizer = "abc") {
  ModelHandle model;
  model.name = name;
  model.tokenizer_sha256 = tokenizer;
  return model;
}

class FakeMember final : public RosterMember {
 public:
  explicit FakeMember(uint32_t index, const ModelHandle* model = nullptr) : model(model) {
    row_.view.index = index;
  }
  const ModelHandle* answers_for() const override { return model; }
  RosterRow row() override { return row_; }

  RosterRow row_;
  const ModelHandle* model;
};

std::vector<uint32_t> Indices(std::span<const RosterRow> rows) {
  std::vector<uint32_t> indices;
  for (const RosterRow& row : rows) indices.push_back(row.view.index);
  return indices;
}

using Numbers = std::vector<uint32_t>;

TEST(RosterTest, OneThatAnswersIsListedByIndex) {
  const ModelHandle model = Model("m");
  FakeMember first(3), second(1);
  Roster roster;
  roster.Add(&first);
  roster.Add(&second);
  EXPECT_TRUE(roster.Of(model).empty());
  first.model = second.model = &model;
  roster.Touch(&first);
  roster.Touch(&second);
  EXPECT_EQ(Indices(roster.Of(model)), Numbers({1, 3}));
  ASSERT_NE(roster.Find(model, 3), nullptr);
  EXPECT_EQ(roster.Find(model, 3)->view.index, 3u);
  EXPECT_EQ(roster.Find(model, 2), nullptr);
  EXPECT_EQ(roster.Find(model, 4), nullptr);
}

TEST(RosterTest, ModelsAndTokenizersAreApart) {
  const ModelHandle model = Model("m"), other = Model("n"), retokenized = Model("m", "def");
  FakeMember first(0, &model), second(1, &other), third(2, &retokenized);
  Roster roster;
  for (FakeMember* member : {&first, &second, &third}) roster.Add(member);
  EXPECT_EQ(Indices(roster.Of(model)), Numbers({0}));
  EXPECT_EQ(Indices(roster.Of(other)), Numbers({1}));
  EXPECT_EQ(Indices(roster.Of(retokenized)), Numbers({2}));
  EXPECT_TRUE(roster.Of(Model("none")).empty());
  EXPECT_EQ(roster.Find(other, 0), nullptr);
}

TEST(RosterTest, WhatIsTouchedIsSeen) {
  const ModelHandle model = Model("m");
  FakeMember member(0, &model);
  Roster roster;
  roster.Add(&member);
  EXPECT_EQ(roster.Of(model)[0].view.queued_tokens, 0u);
  member.row_.view.queued_tokens = 7;
  member.row_.recovering = true;
  roster.Touch(&member);
  EXPECT_EQ(roster.Of(model)[0].view.queued_tokens, 7u);
  EXPECT_TRUE(roster.Of(model)[0].recovering);
}

// A touch before it is removed looks at nothing afterwards.
TEST(RosterTest, WhatIsRemovedIsForgotten) {
  const ModelHandle model = Model("m");
  FakeMember kept(1, &model);
  Roster roster;
  roster.Add(&kept);
  {
    FakeMember gone(0, &model);
    roster.Add(&gone);
    EXPECT_EQ(roster.Of(model).size(), 2u);
    roster.Touch(&gone);
    roster.Remove(&gone);
    roster.Remove(&gone);
  }
  EXPECT_EQ(Indices(roster.Of(model)), Numbers({1}));
}

// Against a list that is made anew each time.
TEST(RosterTest, AnyOrderOfChangesGivesWhatALookAtEachMemberGives) {
  const std::vector<ModelHandle> models = {Model("a"), Model("b"), Model("a", "def")};
  std::mt19937_64 random(20261127);
  std::map<uint32_t, FakeMember> members;
  Roster roster;
  uint32_t next = 0;
  size_t compared = 0;
  for (int step = 0; step < 20'000; ++step) {
    const auto action = random() % 16;
    if (members.empty() || (action == 0 && members.size() < 40)) {
      FakeMember& added = members.try_emplace(next, next).first->second;
      ++next;
      if (random() % 2 == 0) added.model = &models[random() % models.size()];
      roster.Add(&added);
      continue;
    }
    const auto at =
        std::next(members.begin(), static_cast<std::ptrdiff_t>(random() % members.size()));
    FakeMember& member = at->second;
    if (action == 1) {
      roster.Remove(&member);
      members.erase(at);
    } else if (action < 6) {
      member.model = random() % 3 == 0 ? nullptr : &models[random() % models.size()];
      roster.Touch(&member);
    } else if (action < 11) {
      member.row_.view.running_tokens = random();
      member.row_.ready = !member.row_.ready;
      roster.Touch(&member);
    } else {
      const ModelHandle& model = models[random() % models.size()];
      std::vector<RosterRow> expected;
      for (auto& [index, each] : members) {
        if (each.model == &model) expected.push_back(each.row());
      }
      const std::span<const RosterRow> rows = roster.Of(model);
      ASSERT_EQ(std::vector<RosterRow>(rows.begin(), rows.end()), expected) << "step " << step;
      compared += expected.size();
    }
  }
  EXPECT_GT(compared, 10'000u);
}

TEST(ModelHandlesTest, ReplicasThatSayTheSameShareAHandle) {
  ModelHandles handles;
  const auto first = handles.Share(Model("m"));
  ModelHandle later = Model("m");
  later.created = 7;
  EXPECT_EQ(handles.Share(later), first);
  ModelHandle longer = Model("m");
  longer.max_model_len = 9;
  EXPECT_NE(handles.Share(longer), first);
  EXPECT_NE(handles.Share(Model("m", "def")), first);
}

TEST(ModelHandlesTest, OneThatNobodyHoldsIsMadeAnew) {
  ModelHandles handles;
  ModelHandle early = Model("m"), late = Model("m");
  early.created = 1;
  late.created = 2;
  EXPECT_EQ(handles.Share(early)->created, 1);
  EXPECT_EQ(handles.Share(late)->created, 2);
}

}  // namespace
}  // namespace flotilla
