// Short names of the API's types, which are made of its OpenAPI document.

import type { components } from './schema';

type Schemas = components['schemas'];

export type AccessView = Schemas['AccessView'];
export type ArmsView = Schemas['ArmsView'];
export type Audit = Schemas['Audit'];
export type Billed = Schemas['Billed'];
export type Change = Schemas['Change'];
export type Estimate = Schemas['Estimate'];
export type Explained = Schemas['Explained'];
export type FlowGain = Schemas['FlowGain'];
export type FlowView = Schemas['FlowView'];
export type Flows = Schemas['Flows'];
export type Front = Schemas['Front'];
export type Gain = Schemas['Gain'];
export type History = Schemas['History'];
export type HostJumpstart = Schemas['HostJumpstart'];
export type HostState = Schemas['HostState'];
export type HostView = Schemas['HostView'];
export type Hosts = Schemas['Hosts'];
export type Jumpstart = Schemas['Jumpstart'];
export type JumpstartSettings = Schemas['JumpstartSettings'];
export type Kind = Schemas['Kind'];
export type Learned = Schemas['Learned'];
export type LearnedView = Schemas['LearnedView'];
export type LegMeasurement = Schemas['LegMeasurement'];
export type Measurements = Schemas['Measurements'];
export type Method = Schemas['Method'];
export type PacketFlowView = Schemas['PacketFlowView'];
export type PacketFlows = Schemas['PacketFlows'];
export type Place = Schemas['Place'];
export type Places = Schemas['Places'];
export type PlanView = Schemas['PlanView'];
export type Point = Schemas['Point'];
export type RelayGain = Schemas['RelayGain'];
export type SettingsRequest = Schemas['SettingsRequest'];
export type SettingsView = Schemas['SettingsView'];
export type Status = Schemas['Status'];
export type Supposed = Schemas['SupposedView'];
export type WhatIf = Schemas['WhatIf'];
export type WindowCount = Schemas['WindowCount'];
